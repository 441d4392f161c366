"""Gradients of the collectives.

Each function here takes lists of tensors, carries the collective out, and records it if autograd is recording. The
gradients are Horovod's, so that ported scripts learn as they did; its scales are disputed (horovod/horovod#2654), and
they deserve to be known. With n ranks and a loss that is the sum of all ranks' losses::

    collective              gradient here                       times the exact one
    allreduce               allreduce, same op and factors      1
    allgather               average over ranks, own rows        1/n
    broadcast               average over ranks, zero off root   1/n
    alltoall                alltoall, the other way             1
    reducescatter Average   allgather                           n
    reducescatter Sum       allgather, times n                  n

The gradient's operation is named after the forward one (``allreduce.loss.grad``), so ranks pair them whatever order
their backward passes take. It is itself differentiable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hora.engine import session
from hora.engine.process_set import ProcessSet
from hora.errors import UsageError
from hora.torch import submit
from hora.torch.submit import GatheredRows
from hora.types import ReduceOp, Reduction

__all__ = ["allgather", "allreduce", "alltoall", "broadcast", "recording", "recording_in_place", "reducescatter"]

_SMOOTH = (ReduceOp.AVERAGE, ReduceOp.SUM, ReduceOp.ADASUM)


def recording(tensors: Sequence[torch.Tensor]) -> bool:
    """True if autograd would record an operation on these tensors."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def recording_in_place(tensors: Sequence[torch.Tensor]) -> bool:
    """The same for an operation that overwrites them.

    Overwriting a leaf, such as a parameter, gives it a new value: there is nothing to record, and Horovod's users do it
    without a second thought.
    """

    def computed(tensor: torch.Tensor) -> bool:
        return tensor.requires_grad and not (tensor if tensor._base is None else tensor._base).is_leaf

    return torch.is_grad_enabled() and any(computed(tensor) for tensor in tensors)


def allreduce(
    tensors: Sequence[torch.Tensor],
    how: Reduction,
    name: str | None,
    process_set: ProcessSet,
    *,
    grouped: bool = False,
    in_place: bool = False,
) -> list[torch.Tensor]:
    if (recording_in_place if in_place else recording)(tensors):
        return list(_apply(_Allreduce, how, name, process_set, grouped, in_place, *tensors))
    return submit.allreduce(tensors, how, name, process_set, grouped=grouped, in_place=in_place).wait()


def broadcast(
    tensor: torch.Tensor, root: int, name: str | None, process_set: ProcessSet, *, in_place: bool = False
) -> torch.Tensor:
    if (recording_in_place if in_place else recording)([tensor]):
        results: tuple[torch.Tensor] = _apply(_Broadcast, root, name, process_set, in_place, tensor)
        return results[0]
    return submit.broadcast([tensor], root, name, process_set, in_place=in_place).wait()[0]


def allgather(
    tensors: Sequence[torch.Tensor], name: str | None, process_set: ProcessSet, *, grouped: bool = False
) -> list[torch.Tensor]:
    if recording(tensors):
        return list(_apply(_Allgather, name, process_set, grouped, *tensors))
    return [gathered.tensor for gathered in submit.allgather(tensors, name, process_set, grouped=grouped).wait()]


def alltoall(
    tensor: torch.Tensor, splits: Sequence[int] | None, name: str | None, process_set: ProcessSet
) -> GatheredRows[torch.Tensor]:
    if recording([tensor]):
        return GatheredRows(*_apply(_Alltoall, splits, name, process_set, tensor))
    return submit.alltoall(tensor, splits, name, process_set).wait()


def reducescatter(
    tensors: Sequence[torch.Tensor],
    how: Reduction,
    name: str | None,
    process_set: ProcessSet,
    *,
    grouped: bool = False,
) -> list[torch.Tensor]:
    if recording(tensors):
        return list(_apply(_Reducescatter, how, name, process_set, grouped, *tensors))
    return submit.reducescatter(tensors, how, name, process_set, grouped=grouped).wait()


def _apply(function: type[torch.autograd.Function], *arguments: object) -> Any:
    """``function.apply``, for which torch has no types."""
    return function.apply(*arguments)


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        how: Reduction,
        name: str | None,
        process_set: ProcessSet,
        grouped: bool,
        in_place: bool,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        if in_place:
            ctx.mark_dirty(*tensors)
        started = submit.allreduce(tensors, how, name, process_set, grouped=grouped, in_place=in_place)
        ctx.how, ctx.name, ctx.process_set, ctx.grouped = how, f"{started.request.name}.grad", process_set, grouped
        return tuple(started.wait())

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if ctx.how.op not in _SMOOTH:
            raise UsageError(
                f"backward through allreduce with op={ctx.how.op.name.capitalize()}. No gradient is defined for it."
                " Call it under torch.no_grad() or on tensor.detach(), or use op=Sum or op=Average."
            )
        return None, None, None, None, None, *allreduce(grads, ctx.how, ctx.name, ctx.process_set, grouped=ctx.grouped)


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, root: int, name: str | None, process_set: ProcessSet, in_place: bool, tensor: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        if in_place:
            ctx.mark_dirty(tensor)
        started = submit.broadcast([tensor], root, name, process_set, in_place=in_place)
        ctx.name, ctx.process_set = f"{started.request.name}.grad", process_set
        ctx.is_root = session.engine().rank == root
        return tuple(started.wait())

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (averaged,) = allreduce([grad], Reduction(ReduceOp.AVERAGE), ctx.name, ctx.process_set)
        return None, None, None, None, averaged if ctx.is_root else torch.zeros_like(averaged)


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, name: str | None, process_set: ProcessSet, grouped: bool, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        started = submit.allgather(tensors, name, process_set, grouped=grouped)
        ctx.name, ctx.process_set, ctx.grouped = f"{started.request.name}.grad", process_set, grouped
        gathered = started.wait()
        mine = process_set.rank()
        ctx.own = [(sum(g.rows[:mine]), g.rows[mine]) for g in gathered]
        return tuple(g.tensor for g in gathered)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        averaged = allreduce(grads, Reduction(ReduceOp.AVERAGE), ctx.name, ctx.process_set, grouped=ctx.grouped)
        own = (grad.narrow(0, start, rows) for grad, (start, rows) in zip(averaged, ctx.own, strict=True))
        return None, None, None, *own


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, splits: Sequence[int] | None, name: str | None, process_set: ProcessSet, tensor: torch.Tensor
    ) -> tuple[torch.Tensor, tuple[int, ...]]:
        started = submit.alltoall(tensor, splits, name, process_set)
        received = started.wait()
        ctx.name, ctx.process_set = f"{started.request.name}.grad", process_set
        ctx.received, ctx.shape = received.rows, tensor.shape
        return received.tensor, received.rows

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: None) -> tuple[torch.Tensor | None, ...]:
        sent_back = alltoall(grad, ctx.received, ctx.name, ctx.process_set).tensor
        stayed = ctx.shape[0] - len(sent_back)  # rows beyond the splits went nowhere: their gradient is zero
        if stayed:
            sent_back = torch.cat([sent_back, sent_back.new_zeros((stayed, *ctx.shape[1:]))])
        return None, None, None, sent_back


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, how: Reduction, name: str | None, process_set: ProcessSet, grouped: bool, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        started = submit.reducescatter(tensors, how, name, process_set, grouped=grouped)
        ctx.name, ctx.process_set, ctx.grouped = f"{started.request.name}.grad", process_set, grouped
        ctx.factor = how.prescale * how.postscale * (process_set.size() if how.op is ReduceOp.SUM else 1)
        return tuple(started.wait())

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        scaled = [grad * ctx.factor for grad in grads] if ctx.factor != 1 else grads
        return None, None, None, None, *allgather(scaled, ctx.name, ctx.process_set, grouped=ctx.grouped)
