"""``horovod.keras.callbacks``."""

from __future__ import annotations

from ..common import keras_callbacks as _both
from ..common.keras_callbacks import *  # noqa: F403
from ..common.keras_callbacks import __all__ as __all__


class BestModelCheckpoint(_both.BestModelCheckpoint):  # type: ignore[no-redef]  # instead of that one
    """Here Horovod has no ``save_weights_only`` among its arguments."""

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        filepath: str | None = None,
    ) -> None:
        super().__init__(monitor, verbose, False, mode, save_freq, filepath)
