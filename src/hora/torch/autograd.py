"""Gradients of the collectives in torch, by ``ops.backward``: a collective is recorded if autograd is recording."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hora.ops.backward import Gradients
from hora.ops.call import Call, Results
from hora.torch import submit

__all__ = ["carry", "recording", "recording_in_place"]


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


def carry(call: Call, tensors: Sequence[torch.Tensor], in_place: bool = False) -> Results[torch.Tensor]:
    """Carry it out and wait, and record it if autograd is recording."""
    if (recording_in_place if in_place else recording)(tensors):
        *results, rows = _apply(call, in_place, *tensors)
        return Results(results, rows)
    return submit.start(call, tensors, in_place).wait()


def _apply(*arguments: object) -> Any:
    """``apply``, for which torch has no types."""
    return _Recorded.apply(*arguments)  # type: ignore[no-untyped-call]


class _Recorded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Call, in_place: bool, *tensors: torch.Tensor) -> tuple[Any, ...]:
        if in_place:
            ctx.mark_dirty(*tensors)
        started = submit.start(call, tensors, in_place)
        ctx.call, ctx.name, ctx.given = call, f"{started.request.name}.grad", [tensor.shape for tensor in tensors]
        results = started.wait()
        ctx.rows = results.rows
        return *results.tensors, results.rows

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[torch.Tensor | None, ...]:
        return None, None, *_GRADIENTS.of(ctx.call, ctx.name, grads[:-1], ctx.given, ctx.rows)


class _Gradients(Gradients[torch.Tensor]):
    """``given`` are the shapes."""

    advice = "Call it under torch.no_grad() or on tensor.detach()"

    def carry(self, call: Call, grads: list[torch.Tensor]) -> Results[torch.Tensor]:
        return carry(call, grads)

    def zeros(self, like: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(like)

    def own_rows(self, grad: torch.Tensor, rows: Sequence[int], mine: int, given: torch.Size) -> torch.Tensor:
        return grad.narrow(0, sum(rows[:mine]), rows[mine])

    def returned(self, grad: torch.Tensor, given: torch.Size) -> torch.Tensor:
        missing = given[0] - len(grad)
        return torch.cat([grad, grad.new_zeros((missing, *given[1:]))]) if missing else grad


_GRADIENTS = _Gradients()
