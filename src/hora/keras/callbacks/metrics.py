"""All workers look at the same metrics."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from hora.engine.process_set import ProcessSet, global_process_set
from hora.errors import MismatchError
from hora.ops import host
from hora.types import ReduceOp, Reduction

__all__ = ["MetricAverageCallback"]


class MetricAverageCallback(keras.callbacks.Callback):
    """At the end of every epoch, puts the averages over the ranks in place of this rank's metrics.

    Callbacks after it see the averages, and so do the progress bar and the history: put it before those that decide by
    metrics, such as ``ReduceLROnPlateau``, so that all ranks decide alike.

    Args:
        device: Taken for Horovod's sake.
        process_set: The ranks that take part; all of them unless given.
    """

    def __init__(self, device: str = "", process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        self.process_set = process_set

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        names = sorted(logs or ())
        if logs is None or not names:
            return
        own = np.array([float(logs[name]) for name in names])
        try:
            how = Reduction(ReduceOp.AVERAGE)
            (averages,) = host.allreduce([own], how, "keras.metrics", self.process_set).wait()
        except MismatchError as error:
            error.add_note(
                f"MetricAverageCallback: this rank's metrics are {', '.join(names)}. All ranks need the same."
            )
            raise
        logs.update(zip(names, averages.tolist(), strict=True))
