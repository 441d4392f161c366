"""What the functions of ``hora.mxnet`` do with MXNet's arrays.

All of them block, and gradients do not flow through them: ``DistributedTrainer`` needs neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mxnet as mx
import numpy as np

from hora.engine.process_set import ProcessSet
from hora.mxnet.adapter import fresh, like, put_back, view
from hora.ops import host
from hora.ops.call import Call, Results
from hora.ops.compression import GradientCompressor
from hora.ops.forms import Forms
from hora.types import DType, Kind, Reduction

__all__ = ["MXNetForms", "reduce_in_place"]


class MXNetForms(Forms[Any]):
    def dtype_of(self, tensor: Any) -> DType:
        return host.dtype_of(view(tensor))

    def carry(self, call: Call, tensors: list[Any], in_place: bool) -> Results[Any]:
        if not call.elementwise:
            results = host.start(call, [view(tensor) for tensor in tensors]).wait()
            made = [like(result, tensor) for result, tensor in zip(results.tensors, tensors, strict=True)]
            return results._replace(tensors=made)
        inputs = [view(tensor, write=in_place) for tensor in tensors]
        places = tensors if in_place else [fresh(tensor.shape, tensor.dtype, tensor) for tensor in tensors]
        into = inputs if in_place else [view(place, write=True) for place in places]
        results = host.start(call, inputs, into).wait()
        if call.memory is not None:
            for array, result in zip(into, results.tensors, strict=True):
                array[...] = result
        for place, memory in zip(places, into, strict=True):
            put_back(place, memory)
        return Results(places)

    def counts(self, rows: Any) -> Any:
        return mx.nd.array(rows, dtype="int32")

    def splits(self, splits: Any) -> Any:
        """MXNet's arrays of whole numbers are often of float32."""
        if isinstance(splits, mx.nd.NDArray):
            numbers = view(splits)
            splits = [int(n) if n == int(n) else n for n in numbers.tolist()]
        return super().splits(np.asarray(splits))


def reduce_in_place(
    tensors: Sequence[Any],
    how: Reduction,
    name: str,
    process_set: ProcessSet,
    memory: GradientCompressor | None = None,
) -> None:
    """Combine a group where it lies."""
    call = Call(Kind.ALLREDUCE, name, process_set, how, grouped=True, memory=memory)
    MXNetForms().carry(call, list(tensors), True)
