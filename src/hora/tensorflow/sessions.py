"""For sessions of ``tf.compat.v1``: the hook that broadcasts all global variables once they are initialised."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hora.tensorflow.functions import broadcast_global_variables

__all__ = ["BroadcastGlobalVariablesHook"]


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc, unused-ignore]
    """Gives every rank's global variables the root's values when a session is created, whether they were initialised
    or restored from a checkpoint: ``MonitoredTrainingSession(hooks=[BroadcastGlobalVariablesHook(0)])``.

    Args:
        root_rank: The rank to copy from.
        device: Taken for Horovod's sake.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank, self.device = root_rank, device
        self.bcast_op: Any = None

    def begin(self) -> None:
        if self.bcast_op is None or self.bcast_op.graph is not tf.compat.v1.get_default_graph():
            self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        session.run(self.bcast_op)
