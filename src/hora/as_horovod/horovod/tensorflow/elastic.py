"""``horovod.tensorflow.elastic``: importable, so that scripts which offer it as an option run; using it is refused."""

from __future__ import annotations

from ..common.elastic import ObjectState, Unavailable, run_fn

run = run_fn


class TensorFlowState(Unavailable):
    """Refused when it is made."""


class TensorFlowKerasState(Unavailable):
    """Refused when it is made."""


__all__ = ["ObjectState", "TensorFlowKerasState", "TensorFlowState", "run"]
