"""Hands torch tensors to the engine: ``ops.operation``'s collectives on them, and allreduces that are repeated.

Tensors on a GPU stay there if the backend carries them (``transport.nccl``): the caller's stream is marked when they
are submitted, and waits for the result when that is asked for, while the host goes on.

A training step makes the same calls with the same arguments again and again. An in-place allreduce of one tensor of the
host is therefore kept under the call's arguments (``keep``), and the next one is a look-up (``kept``) and one call into
the C core. That is the whole cost of a small operation: every line of it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import increment_version

from hora.engine import session
from hora.engine.backend import Operation, OperationOutcome, UnderWay
from hora.engine.process_set import ProcessSet
from hora.engine.request import OperationSpec
from hora.errors import UsageError
from hora.ops import operation
from hora.ops.call import Call, Results
from hora.torch.adapter import DTYPES, buffer, dtype_of, from_memory, is_expanded, laid_out
from hora.torch.compat import touch
from hora.transport import device as devices
from hora.types import Buffer, Kind, Reduction

__all__ = ["Start", "allreduce_in_place", "keep", "kept", "prepare", "start", "touch"]

Tensors = Sequence[torch.Tensor]

_NOT_KNOWN = (KeyError, AttributeError, TypeError, RuntimeError)  # new, not initialised, no tensor, a sparse one


def start(call: Call, tensors: Tensors, in_place: bool = False) -> UnderWay[Results[torch.Tensor]]:
    """Begin a collective; the results are new tensors or, of an elementwise one that is in place, those given."""
    return operation.start(_Adapter(call.kind, tensors), call, tensors, tensors if in_place else None)


# --- what is repeated -------------------------------------------------------------------------------------------------


Start = Callable[[torch.Tensor], UnderWay[OperationOutcome]]


def allreduce_in_place(
    tensor: torch.Tensor, how: Reduction, name: str, process_set: ProcessSet
) -> UnderWay[OperationOutcome]:
    """One tensor; the outcome says who brought inf or nan."""
    return start(Call(Kind.ALLREDUCE, name, process_set, how), [tensor], True).then(lambda results: results.outcome)


def prepare(like: torch.Tensor, how: Reduction, name: str, process_set: ProcessSet) -> Start:
    """What starts the same on contiguous tensors like this one, again and again."""
    if not like.is_cpu:
        return lambda tensor: allreduce_in_place(tensor, how, name, process_set)
    form = dtype_of(like), tuple(like.shape)
    start_at = session.engine().prepare(OperationSpec(Kind.ALLREDUCE, name, (form,), process_set, how)).start_at
    return lambda tensor: start_at(tensor.data_ptr(), tensor)


def kept(
    tensor: torch.Tensor,
    name: str | None,
    op: object,
    average: object,
    before: object,
    after: object,
    members: ProcessSet,
) -> Operation | None:
    """The in-place allreduce that was kept for this call on such a tensor, if it can be done where that lies."""
    try:
        call = (name, op, average, before, after, members.process_set_id, tensor.dtype, tensor.shape)
        known = session.current.prepared[call]  # type: ignore[union-attr]
        if tensor.requires_grad or not tensor.is_cpu or not tensor.is_contiguous() or tensor.is_neg():
            return None
    except _NOT_KNOWN:
        return None
    return known


def keep(
    tensor: torch.Tensor,
    name: str | None,
    op: object,
    average: object,
    before: object,
    after: object,
    members: ProcessSet,
    how: Reduction,
) -> None:
    """Keep the operation for this call, with ``how`` for what its arguments mean."""
    engine = session.current
    if engine is not None and name is not None and tensor.is_cpu:
        form = DTYPES[tensor.dtype], tuple(tensor.shape)
        prepared = engine.prepare(OperationSpec(Kind.ALLREDUCE, name, (form,), members, how))
        call = (name, op, average, before, after, members.process_set_id, tensor.dtype, tensor.shape)
        engine.keep(call, prepared)


# --- tensors as memory ------------------------------------------------------------------------------------------------


class _Adapter:
    """``ops.operation.Adapter``: where the tensors of one call are, and how the caller's stream and the operation wait
    for each other."""

    __slots__ = ("_stays", "_where", "device")

    def __init__(self, kind: Kind, tensors: Tensors) -> None:
        carries = session.engine().backend.carries
        operation.check(kind, tensors, dtype_of)
        self._where = tensors[0].device
        self.device = self._where.type
        self._stays = self.device != "cpu" and self.device in carries
        for tensor in tensors:
            if not (self.device == "cpu" and tensor.is_cpu) and tensor.device != self._where:
                raise UsageError(
                    f"grouped_{kind.name.lower()} of tensors on {self._where} and {tensor.device}. A group is worked on"
                    " in one place. Move them to one device, or make a group of each."
                )

    def follow(self, outcome: OperationOutcome) -> OperationOutcome:
        """Put the caller's stream behind the operation."""
        if self._stays:
            devices.follow(outcome.finished, self._where)
        return outcome

    def sent(self, tensor: torch.Tensor) -> torch.Tensor:
        return laid_out(tensor, self._stays)

    def targets(self, tensors: Tensors, sent: Tensors, into: Tensors | None) -> Tensors:
        """A copy that was made for sending is free to be overwritten; what is in place is written where it was read."""
        if into is None:
            pairs = zip(tensors, sent, strict=True)
            return [torch.empty_like(s, requires_grad=False) if s is tensor else s for tensor, s in pairs]
        for tensor, copy in zip(tensors, sent, strict=True):
            if tensor is not copy and is_expanded(tensor):
                raise UsageError(
                    f"an in-place collective on an expanded tensor (shape {tuple(tensor.shape)}, strides"
                    f" {tensor.stride()}). Several of its elements share one place in memory and cannot all be written."
                    " Use the form that is not in place, or .contiguous()."
                )
        increment_version(sent)  # so that autograd notices if it had saved one of them for a backward pass
        return sent

    def put(self, target: torch.Tensor, place: torch.Tensor) -> None:
        place.detach().copy_(target)

    def buffers(self, tensors: Tensors) -> list[Buffer]:
        if not self._stays:
            return [Buffer(tensor.data_ptr(), DTYPES[tensor.dtype], tuple(tensor.shape), tensor) for tensor in tensors]
        ready = devices.mark(self._where)
        return [buffer(tensor, dtype_of(tensor), self.device, ready) for tensor in tensors]

    def empty(self, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        return like.new_empty(shape)

    def whole_numbers(self, numbers: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        return torch.tensor(numbers, device=like.device)

    def bytes_(self, count: int, like: torch.Tensor) -> torch.Tensor:
        return like.new_zeros(count, dtype=torch.uint8)

    def result(self, tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return tensor if like.is_cpu else tensor.to(like.device)

    def adopt(self, memory: Any, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        return from_memory(memory, like.dtype, shape, like.device)

    def read(self, memory: Any) -> list[int]:
        numbers: list[int] = from_memory(memory, torch.int64, (-1,), torch.device("cpu")).tolist()
        return numbers
