"""Hands torch tensors to the engine: one function a collective, each returning what is under way.

All of them take a list of tensors; a group is a list, a single tensor a list of one. Nothing here knows of gradients.

Tensors on a GPU stay there if the backend carries them (``transport.nccl``): the caller's stream is marked when they
are submitted, and waits for the result when that is asked for, while the host goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch.autograd.graph import increment_version

from hora.engine import session
from hora.engine.backend import Outcome
from hora.engine.core import Engine
from hora.engine.process_set import ProcessSet
from hora.errors import UsageError
from hora.ops.resolve import Reduction, check_rows, equal_splits, scattered_rows, splits_of
from hora.ops.started import Started
from hora.torch.adapter import buffer, dtype_of, from_memory, is_expanded, laid_out
from hora.transport import cuda
from hora.transport.base import Buffer, Kind

__all__ = ["Gathered", "Started", "allgather", "allreduce", "alltoall", "broadcast", "reducescatter"]

T = TypeVar("T")


class Gathered(NamedTuple):
    """Rows that came together from all ranks of a set, and how many came from each, in rank order."""

    tensor: torch.Tensor
    rows: tuple[int, ...]


def allreduce(
    tensors: Sequence[torch.Tensor],
    how: Reduction,
    name: str | None,
    process_set: ProcessSet,
    *,
    grouped: bool = False,
    in_place: bool = False,
) -> Started[list[torch.Tensor]]:
    """Combine; the results are new tensors, or the given ones if in place."""
    engine = session.engine()
    place, sent = _outgoing(engine, tensors, "allreduce")
    inputs, outputs, finish = _same_shape_results(place, tensors, sent, in_place)
    ticket = engine.submit(
        Kind.ALLREDUCE, name, inputs, outputs, op=how.op, prescale=how.prescale, postscale=how.postscale,
        process_set=process_set, device=place.device, grouped=grouped, wire=how.wire,
    )  # fmt: skip
    return Started(engine, ticket, place.then(finish))


def broadcast(
    tensors: Sequence[torch.Tensor], root: int, name: str | None, process_set: ProcessSet, *, in_place: bool = False
) -> Started[list[torch.Tensor]]:
    """Copy the root's; the results are new tensors, or the given ones if in place."""
    engine = session.engine()
    place, sent = _outgoing(engine, tensors, "broadcast")
    inputs, outputs, finish = _same_shape_results(place, tensors, sent, in_place)
    ticket = engine.submit(
        Kind.BROADCAST, name, inputs, outputs, root=root, process_set=process_set, device=place.device
    )
    return Started(engine, ticket, place.then(finish))


def allgather(
    tensors: Sequence[torch.Tensor], name: str | None, process_set: ProcessSet, *, grouped: bool = False
) -> Started[list[Gathered]]:
    """Concatenate rows."""
    engine = session.engine()
    place, sent = _outgoing(engine, tensors, "allgather", rows_matter=True)
    # The bytes received tell the rows, except of rows without elements: those are sent as a number beside the tensor.
    counted = [i for i, tensor in enumerate(sent) if not _row_bytes(tensor)]
    numbers = [torch.tensor([len(sent[i])], device=sent[i].device) for i in counted]
    ticket = engine.submit(
        Kind.ALLGATHER, name, place.buffers([*sent, *numbers]), [], process_set=process_set, device=place.device,
        grouped=grouped,
    )  # fmt: skip
    like = [(tensor.dtype, tensor.shape[1:], tensor.device) for tensor in tensors]

    def finish(outcome: Outcome) -> list[Gathered]:
        counts, host = outcome.memory[len(like) :], torch.device("cpu")
        extra = (from_memory(memory, torch.int64, (-1,), host).tolist() for memory in counts)
        gathered = []
        for (dtype, width, device), memory, received in zip(like, outcome.memory, outcome.received, strict=False):
            row_bytes = width.numel() * dtype.itemsize
            rows = tuple(n // row_bytes for n in received) if row_bytes else tuple(next(extra))
            gathered.append(Gathered(from_memory(memory, dtype, (sum(rows), *width), device), rows))
        return gathered

    return Started(engine, ticket, place.then(finish))


def alltoall(
    tensor: torch.Tensor, splits: Sequence[int] | None, name: str | None, process_set: ProcessSet
) -> Started[Gathered]:
    """Exchange rows."""
    engine = session.engine()
    place, (sent,) = _outgoing(engine, [tensor], "alltoall", rows_matter=True)
    row_bytes = _row_bytes(sent)
    if not row_bytes:  # the bytes received tell the rows: a byte stands for each that has no elements
        counted = alltoall(sent.new_zeros(len(sent), dtype=torch.uint8), splits, name, process_set)
        return counted.then(lambda rows: Gathered(tensor.new_empty(len(rows.tensor), *tensor.shape[1:]), rows.rows))
    set_size = len(process_set.members)
    splits = equal_splits(len(sent), set_size) if splits is None else splits_of(splits, len(sent), set_size)
    ticket = engine.submit(
        Kind.ALLTOALL, name, place.buffers([sent[: sum(splits)]]), [], splits=splits, process_set=process_set,
        device=place.device,
    )  # fmt: skip
    dtype, width, device = tensor.dtype, tensor.shape[1:], tensor.device

    def finish(outcome: Outcome) -> Gathered:
        rows = tuple(n // row_bytes for n in outcome.received[0])
        return Gathered(from_memory(outcome.memory[0], dtype, (sum(rows), *width), device), rows)

    return Started(engine, ticket, place.then(finish))


def reducescatter(
    tensors: Sequence[torch.Tensor],
    how: Reduction,
    name: str | None,
    process_set: ProcessSet,
    *,
    grouped: bool = False,
) -> Started[list[torch.Tensor]]:
    """Combine, and keep this rank's rows."""
    engine = session.engine()
    place, sent = _outgoing(engine, tensors, "reducescatter", rows_matter=True)
    below = sum(member < engine.rank for member in process_set.members)  # this rank's place in the set
    set_size = len(process_set.members)
    into = [tensor.new_empty((scattered_rows(len(tensor), set_size, below), *tensor.shape[1:])) for tensor in sent]
    ticket = engine.submit(
        Kind.REDUCESCATTER, name, place.buffers(sent), place.buffers(into), op=how.op, prescale=how.prescale,
        postscale=how.postscale, process_set=process_set, device=place.device, grouped=grouped,
    )  # fmt: skip
    devices = [tensor.device for tensor in tensors]

    def finish(outcome: Outcome) -> list[torch.Tensor]:
        return [tensor.to(device) for tensor, device in zip(into, devices, strict=True)]

    return Started(engine, ticket, place.then(finish))


class _Place:
    """Where the tensors of one operation are, and how the caller's stream and the operation wait for each other."""

    __slots__ = ("_stays", "_where", "device")

    def __init__(self, engine: Engine, first: torch.Tensor) -> None:
        self.device, self._where = cuda.device.type_of(first), first.device
        self._stays = self.device != "cpu" and self.device in getattr(engine.backend, "carries", ())

    def lay_out(self, tensor: torch.Tensor) -> torch.Tensor:
        """What to send for it: contiguous, without autograd, on the host unless it can stay where it is."""
        return laid_out(tensor, self._stays)

    def buffers(self, tensors: Sequence[torch.Tensor]) -> list[Buffer]:
        """To be called once all work on the tensors is on the stream."""
        if not self._stays:
            return [buffer(tensor, dtype_of(tensor)) for tensor in tensors]
        ready = cuda.device.mark(self._where)
        return [buffer(tensor, dtype_of(tensor), self.device, ready) for tensor in tensors]

    def then(self, finish: Callable[[Outcome], T]) -> Callable[[Outcome], T]:
        """``finish``, with the caller's stream behind the operation."""
        if not self._stays:
            return finish

        def follow(outcome: Outcome) -> T:
            cuda.device.follow(outcome.finished, self._where)
            return finish(outcome)

        return follow


def _outgoing(
    engine: Engine, tensors: Sequence[torch.Tensor], function: str, rows_matter: bool = False
) -> tuple[_Place, list[torch.Tensor]]:
    """Where the tensors are worked on, and what to send for each."""
    if not tensors:
        raise UsageError(
            f"grouped_{function} of an empty list. There is nothing that the ranks could agree on. Leave the call"
            " out, on all ranks, where there are no tensors."
        )
    for tensor in tensors:
        dtype_of(tensor)
        if rows_matter:
            check_rows(function, tensor.shape)
        if tensor.device != tensors[0].device:
            raise UsageError(
                f"grouped_{function} of tensors on {tensors[0].device} and {tensor.device}. A group is worked on in"
                " one place. Move them to one device, or make a group of each."
            )
    place = _Place(engine, tensors[0])
    return place, [place.lay_out(tensor) for tensor in tensors]


def _same_shape_results(
    place: _Place, tensors: Sequence[torch.Tensor], sent: list[torch.Tensor], in_place: bool
) -> tuple[list[Buffer], list[Buffer], Callable[[Outcome], list[torch.Tensor]]]:
    """For results as large as the inputs: where to read, where to write, and how the results get to the caller.

    A copy that was made for sending is free to be overwritten; and what is in place is written where it was read.
    """
    inputs = place.buffers(sent)
    if not in_place:
        into = [torch.empty_like(s, requires_grad=False) if s is t else s for s, t in zip(sent, tensors, strict=True)]
        devices = [tensor.device for tensor in tensors]
        return inputs, place.buffers(into), lambda outcome: [r.to(d) for r, d in zip(into, devices, strict=True)]

    copied = [(tensor, copy) for tensor, copy in zip(tensors, sent, strict=True) if copy is not tensor]
    for tensor, _ in copied:
        if is_expanded(tensor):
            raise UsageError(
                f"an in-place collective on an expanded tensor (shape {tuple(tensor.shape)}, strides"
                f" {tensor.stride()}). Several of its elements share one place in memory and cannot all be written. Use"
                " the form that is not in place, or .contiguous()."
            )
    increment_version(sent)  # so that autograd notices if it had saved one of them for a backward pass
    given = list(tensors)

    def finish(outcome: Outcome) -> list[torch.Tensor]:
        for tensor, copy in copied:
            tensor.detach().copy_(copy)
        return given

    return inputs, inputs, finish


def _row_bytes(tensor: torch.Tensor) -> int:
    return tensor.shape[1:].numel() * tensor.itemsize
