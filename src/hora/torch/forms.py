"""What the functions of ``hora.torch`` do with torch's tensors, and the two that are made for speed.

Forms that block return tensors and are differentiable; ``*_async`` forms return a handle for ``poll`` and
``synchronize`` and are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hora.engine import handle, session
from hora.engine.backend import UnderWay
from hora.engine.process_set import ProcessSet, global_process_set
from hora.errors import UsageError
from hora.ops.call import Call, Results
from hora.ops.forms import Forms
from hora.ops.resolve import reduction
from hora.ops.table import FUNCTIONS
from hora.torch import autograd, submit
from hora.torch.adapter import dtype_of
from hora.torch.compression import Compression
from hora.torch.compression.cast import type_between_hosts
from hora.torch.submit import kept, touch
from hora.types import DType, Kind, ReduceOp

__all__ = ["TorchForms", "allreduce_", "allreduce_async_"]

_ALLREDUCE = FUNCTIONS["allreduce"][0]


class TorchForms(Forms[torch.Tensor]):
    memories = False  # reduce_gradients does that

    def dtype_of(self, tensor: torch.Tensor) -> DType:
        return dtype_of(tensor)

    def carry(self, call: Call, tensors: list[torch.Tensor], in_place: bool) -> Results[torch.Tensor]:
        return autograd.carry(call, tensors, in_place)

    def begin(self, call: Call, tensors: list[torch.Tensor], in_place: bool) -> UnderWay[Results[torch.Tensor]]:
        if in_place:
            _refuse_recording(tensors, call)
        return submit.start(call, tensors, in_place)

    def counts(self, rows: Sequence[int]) -> torch.Tensor:
        return torch.tensor(rows, dtype=torch.int32)

    def between_hosts(self, compression: Any, tensors: Sequence[torch.Tensor]) -> DType | None:
        """Nothing if a gradient is wanted."""
        if compression is Compression.none or autograd.recording(tensors):
            return None
        return type_between_hosts(compression, tensors, session.engine().backend)

    def is_copy(self, tensor: torch.Tensor, given: torch.Tensor) -> bool:
        """Overwriting it spares the memory of a result."""
        mine = tensor.untyped_storage().data_ptr() != given.untyped_storage().data_ptr()
        return mine and not autograd.recording([tensor])


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    if (known := kept(tensor, name, op, average, prescale_factor, postscale_factor, process_set)) is not None:
        touch((tensor,))
        known.run(tensor.data_ptr(), tensor)
        return tensor
    how = reduction(_ALLREDUCE, (dtype_of(tensor),), op, average, prescale_factor, postscale_factor)
    (result,) = autograd.carry(Call(Kind.ALLREDUCE, name, process_set, how), [tensor], True).tensors
    submit.keep(tensor, name, op, average, prescale_factor, postscale_factor, process_set, how)
    return result


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    if (known := kept(tensor, name, op, average, prescale_factor, postscale_factor, process_set)) is not None:
        touch((tensor,))
        return handle.new(known.start_at(tensor.data_ptr(), tensor).then(lambda _: tensor))
    how = reduction(_ALLREDUCE, (dtype_of(tensor),), op, average, prescale_factor, postscale_factor)
    call = Call(Kind.ALLREDUCE, name, process_set, how)
    _refuse_recording([tensor], call)
    number = handle.new(submit.start(call, [tensor], True).then(lambda results: results.tensors[0]))
    submit.keep(tensor, name, op, average, prescale_factor, postscale_factor, process_set, how)
    return number


def _refuse_recording(tensors: Sequence[torch.Tensor], call: Call) -> None:
    """An operation that ends later cannot be put on autograd's record now."""
    if autograd.recording_in_place(tensors):
        function = f"{'grouped_' if call.grouped else ''}{call.function}_async_"
        raise UsageError(
            f"{function} on a tensor that was computed from others that require grad. Autograd cannot record an"
            " operation that finishes later, and would compute wrong gradients. Call it under torch.no_grad(), or on"
            " tensor.data."
        )
