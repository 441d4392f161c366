"""What the functions of ``hora.jax`` do with JAX's arrays.

Forms that block may stand anywhere, also under ``jit``, ``grad`` and ``vmap``; ``*_async`` forms return a handle for
``poll`` and ``synchronize`` and need arrays with values.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from hora.engine.backend import UnderWay
from hora.engine.core import source_line
from hora.engine.process_set import ProcessSet
from hora.errors import UsageError
from hora.jax import gradients
from hora.jax.adapter import adopt, as_array, dtype_of, is_traced, view
from hora.jax.call import JaxCall, splits_in_program
from hora.ops import host
from hora.ops.call import Results
from hora.ops.forms import Forms
from hora.ops.table import Form
from hora.types import DType

__all__ = ["JaxForms"]


class JaxForms(Forms[Any]):
    new_call = JaxCall

    def given(self, tensor: Any) -> Any:
        return as_array(tensor)

    def dtype_of(self, tensor: Any) -> DType:
        return dtype_of(tensor)

    def carry(self, call: Any, tensors: list[Any], in_place: bool) -> Results[Any]:
        """Do it now, or record it with the line it came from."""
        if any(is_traced(array) for array in tensors):
            for array in tensors:
                dtype_of(array)
            call = call.placed(source_line())
        return gradients.carry(call, tensors)

    def begin(self, call: Any, tensors: list[Any], in_place: bool) -> UnderWay[Results[Any]]:
        if any(is_traced(array) for array in tensors):
            raise UsageError(
                f"{call.function}_async under jit, grad or vmap. It would have to hand out a handle for"
                " something that has not begun. Use the form without _async there."
            )
        n, begun = len(tensors), call.start([view(array) for array in tensors]).then(host.flat)
        adopted: UnderWay[list[Any]] = begun.then(lambda results: adopt(results, tensors[0]))
        return adopted.then(lambda results: Results(results[:n], results[n:]))

    def splits(self, splits: Any) -> Any:
        if is_traced(splits):
            raise splits_in_program()
        return super().splits(np.asarray(splits))

    def barrier(self, form: Form, *, process_set: ProcessSet) -> Any:
        jax.effects_barrier()  # what compiled programs still have to do comes before it
        super().barrier(form, process_set=process_set)

    def join(self, form: Form, *, device: int, average_active: bool) -> Any:
        jax.effects_barrier()
        return super().join(form, device=device, average_active=average_active)
