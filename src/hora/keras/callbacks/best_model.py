"""The best model so far, kept in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras

from hora.engine import session
from hora.errors import UsageError

__all__ = ["BestModelCheckpoint"]


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """Saves the model whenever a metric is better than ever before; rank 0 does, so that one list serves all ranks.

    Put it after ``MetricAverageCallback``: rank 0 decides, by the averages then.

    Args:
        filepath: Where to save it, ending in .keras or .h5. It may be set later, as ``callback.filepath``.
        monitor: The metric to look at.
        verbose: 1 to say when it is saved.
        mode: "min" or "max": what is better; "auto" goes by the metric.
        save_freq: "epoch", or a number of batches.
        save_weights_only: Leave out the optimizer and the structure of the model; the file ends in .weights.h5 then.
    """

    def __init__(
        self,
        filepath: str | Path | None = None,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        save_weights_only: bool = False,
    ) -> None:
        later = "later.weights.h5" if save_weights_only else "later.keras"
        super().__init__(
            filepath=later if filepath is None else filepath, monitor=monitor, verbose=verbose, save_best_only=True,
            save_weights_only=save_weights_only, mode=mode, save_freq=save_freq,
        )  # fmt: skip
        self.filepath: str | None = None if filepath is None else str(filepath)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self.filepath is None:
            raise UsageError(
                "BestModelCheckpoint has no filepath. The best model has to be saved somewhere. Give it filepath=, or"
                " set callback.filepath before training."
            )
        super().on_train_begin(logs)

    def _save_model(self, epoch: int, batch: int | None, logs: dict[str, Any] | None) -> None:
        if session.rank() == 0:
            super()._save_model(epoch, batch, logs)
