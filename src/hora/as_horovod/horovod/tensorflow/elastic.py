"""``horovod.tensorflow.elastic``."""

from __future__ import annotations

from hora.tensorflow.elastic import ObjectState, TensorFlowKerasState, TensorFlowState, run

__all__ = ["ObjectState", "TensorFlowKerasState", "TensorFlowState", "run"]
