"""``elastic`` of both Keras packages: the callbacks work on any state; Horovod's own states are not available yet."""

from __future__ import annotations

from hora.keras.elastic import CommitStateCallback, UpdateBatchStateCallback, UpdateEpochStateCallback

from .elastic import ObjectState, run_fn

__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]

run = run_fn


class KerasState(ObjectState):
    """Refused when it is made."""
