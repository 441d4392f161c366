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

from collections.abc import Sequence
from typing import Any

from hora.keras.adapter import Array, from_numpy, is_tensor, to_numpy
from hora.ops import host
from hora.ops.call import Call, Results
from hora.ops.forms import Forms
from hora.ops.table import Collective, Form
from hora.types import DType

__all__ = ["ValueForms"]


class ValueForms(Forms[Any]):
    def dtype_of(self, tensor: Any) -> DType:
        return host.dtype_of(to_numpy(tensor))

    def carry(self, call: Call, tensors: list[Any], in_place: bool) -> Results[Any]:
        (value,) = tensors
        return Results([_like(value, host.start(call, [to_numpy(value)]).wait().tensors[0])])

    def run(
        self, collective: Collective, form: Form, given: Sequence[Any], *, compression: Any = None, **said: Any
    ) -> Any:
        """Compressors take tensors of the backend."""
        if compression is None:
            return super().run(collective, form, given, **said)
        moved = [from_numpy(to_numpy(value)) for value in given]
        return _like(given[0], to_numpy(super().run(collective, form, moved, compression=compression, **said)))


def _like(value: Any, result: Array) -> Any:
    """The result as the kind of thing that was given."""
    if is_tensor(value):
        return from_numpy(result)
    return result if result.ndim else result[()]
