"""The states of models whose variables are reached as arrays: Keras's, and TensorFlow's own variables.

How a variable becomes an array that nobody else changes is the framework's to say; the rest is the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hora.elastic.state import Handler, ObjectState

__all__ = ["ModelState", "Variables"]


class Variables(Handler):
    """Some variables, by their order, kept as arrays in the host's memory."""

    def __init__(self, variables: Callable[[], Sequence[Any]], to_array: Callable[[Any], Any], value: Any) -> None:
        self._variables, self._to_array = variables, to_array
        super().__init__(value)

    def capture(self) -> Any:
        return [self._to_array(variable) for variable in self._variables()]

    def load(self, captured: Any) -> None:
        for variable, array in zip(self._variables(), captured, strict=True):
            variable.assign(array)

    def save(self) -> None:
        self._saved = self.capture()  # arrays of its own already

    def restore(self) -> None:
        if self._saved is not None:
            self.load(self._saved)

    def set_value(self, value: Any) -> None:
        self.value = value
        self.save()


class _Model(Variables):
    """A model's and its optimizer's variables. Those of the optimizer may come to be only with the first step."""

    def __init__(self, model: Any, optimizer: Callable[[], Any], to_array: Callable[[Any], Any]) -> None:
        self._optimizer = optimizer
        super().__init__(lambda: self.value.variables, to_array, model)

    def _slots(self) -> list[Any]:
        optimizer = self._optimizer()
        found = getattr(optimizer, "variables", None) if optimizer is not None else None
        return list(found() if callable(found) else found or [])

    def capture(self) -> Any:
        return super().capture(), [self._to_array(variable) for variable in self._slots()]

    def load(self, captured: Any) -> None:
        own, slots = captured
        super().load(own)
        optimizer = self._optimizer()
        if len(slots) > len(self._slots()) and hasattr(optimizer, "build"):
            optimizer.build(self.value.trainable_variables)
        for variable, array in zip(self._slots(), slots, strict=False):
            variable.assign(array)


class ModelState(ObjectState):
    """A Keras model, its optimizer, and whatever else a training needs to continue.

    Args:
        model: A model that is built.
        optimizer: Its optimizer; the model's own if not given.
        backend: Taken for Horovod's sake.
        kwargs: Attributes with their first values, such as ``batch=0, epoch=0``.
    """

    @staticmethod
    def _to_array(variable: Any) -> Any:
        raise NotImplementedError

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        self.model, self.optimizer, self.backend = model, optimizer or getattr(model, "optimizer", None), backend
        super().__init__(**kwargs)
        self._handlers["model"] = _Model(model, lambda: self.optimizer, self._to_array)
        self._keep()
