"""What ``horovod.keras.callbacks`` and ``horovod.tensorflow.keras.callbacks`` offer."""

from __future__ import annotations

from hora.keras import callbacks as _hora
from hora.keras.callbacks import (
    BroadcastGlobalVariablesCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback,
)

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BestModelCheckpoint(_hora.BestModelCheckpoint):
    """Hora's, with Horovod's arguments: the file is set later, as ``callback.filepath``."""

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        filepath: str | None = None,
    ) -> None:
        super().__init__(filepath, monitor, verbose, mode, save_freq, save_weights_only)
