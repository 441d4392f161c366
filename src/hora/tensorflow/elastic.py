"""Elastic training with TensorFlow: Horovod's names, with its meanings.

A state's variables are kept as numpy arrays in the host's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from hora.elastic import run as elastic_run
from hora.elastic.model import ModelState, Variables
from hora.elastic.state import ObjectState, State

__all__ = ["ObjectState", "State", "TensorFlowKerasState", "TensorFlowState", "run"]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function that trains with a state, so that it goes on when workers are lost or come."""
    return elastic_run.run(elastic_run.unwrapping(func))


def _to_array(variable: Any) -> Any:
    return variable.numpy()  # a copy


class TensorFlowState(ObjectState):
    """Variables, and whatever else a training needs to go on.

    Args:
        variables: The variables; by itself those that TensorFlow calls global.
        session: For TensorFlow's sessions, which elastic training does without; must be None.
        kwargs: Attributes with their first values.
    """

    def __init__(self, variables: Sequence[Any] | None = None, session: Any = None, **kwargs: Any) -> None:
        found = list(variables) if variables is not None else list(tf.compat.v1.global_variables())
        self.variables, self.session = found, session
        super().__init__(**kwargs)
        self._handlers["variables"] = Variables(lambda: self.variables, _to_array, found)
        self._keep()


class TensorFlowKerasState(ModelState):
    __doc__ = ModelState.__doc__

    @staticmethod
    def _to_array(variable: Any) -> Any:
        return _to_array(variable)
