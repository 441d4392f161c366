"""Collectives on values: numbers, lists and arrays, as callbacks and scripts have them beside the training itself.

They go through the host and work on every backend alike. What is given as a tensor comes back as one, anything else as
a numpy array, or a number if it has no dimensions. For collectives inside a model or a compiled step, use the
front-end of the backend: ``hora.tensorflow``, ``hora.torch`` or ``hora.jax``.

>>> import hora.keras as hvd
>>> hvd.init()
>>> hvd.allreduce([0.5, 1.5], name="score").tolist()      # alone: one rank
[0.5, 1.5]
>>> hvd.shutdown()
"""

from __future__ import annotations

from typing import Any

from hora.keras.adapter import Array, from_numpy, is_tensor, to_numpy
from hora.ops import host
from hora.ops.call import Call
from hora.ops.forms import Forms
from hora.types import DType

__all__ = ["ValueForms"]


class ValueForms(Forms[Any]):
    def dtype_of(self, tensor: Any) -> DType:
        return host.dtype_of(to_numpy(tensor))

    def carry(self, call: Call, tensors: list[Any], in_place: bool) -> list[Any]:
        (value,) = tensors
        return [_like(value, call.start([to_numpy(value)]).wait()[0])]

    def _reduce(self, collective: Any, form: Any, given: Any, *how: Any) -> Any:
        """Compressors take tensors of the backend."""
        if how[-1] is None:
            return super()._reduce(collective, form, given, *how)
        result = super()._reduce(collective, form, [from_numpy(to_numpy(value)) for value in given], *how)
        return _like(given[0], to_numpy(result))


def _like(value: Any, result: Array) -> Any:
    """The result as the kind of thing that was given."""
    if is_tensor(value):
        return from_numpy(result)
    return result if result.ndim else result[()]
