"""The collectives on any framework's tensors: from what a caller gave to an operation under way.

One function a collective. All take a list of tensors; a group is a list, a single tensor a list of one. What they need
to know of a framework is its ``Adapter``: ``ops.host`` has that of numpy arrays, on which TensorFlow, JAX and MXNet
stand, and ``torch.submit`` that of torch. Nothing here knows of gradients.

Promises: what cannot be carried is refused before anything is sent. A tensor is read where it lies if it can be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from hora.engine import session
from hora.engine.backend import OperationOutcome, UnderWay
from hora.engine.process_set import ProcessSet
from hora.engine.request import OperationSpec, forms
from hora.errors import UsageError
from hora.ops.resolve import check_rows, equal_splits, scattered_rows, splits_of
from hora.types import Buffer, DType, Kind, ReduceOp, Reduction

__all__ = [
    "Adapter",
    "GatheredRows",
    "allgather",
    "allreduce",
    "allreduce_in_place",
    "alltoall",
    "broadcast",
    "check",
    "reducescatter",
]

T = TypeVar("T")
Shape = tuple[int, ...]

_NONE = Reduction(ReduceOp.SUM)  # for what reduces nothing


class GatheredRows(NamedTuple, Generic[T]):
    """Rows that came together from all ranks of a set, and how many came from each, in rank order."""

    tensor: T
    rows: tuple[int, ...]


class Adapter(Protocol[T]):
    """One framework's tensors as memory, for one call; ``T`` has a shape, a dtype with an itemsize, and rows.

    ``device`` is where the caller's tensors are.
    """

    device: str

    def sent(self, tensor: T) -> T:
        """What to send for a tensor: contiguous, where the backend can reach it; the tensor itself if it is that."""

    def targets(self, tensors: Sequence[T], sent: Sequence[T], into: Sequence[T] | None) -> Sequence[T]:
        """Where results as large as the inputs are to be written: new tensors, or what stands for ``into``."""

    def put(self, target: T, place: T) -> None:
        """Copy a result to the tensor of the caller's that it stood for."""

    def buffers(self, tensors: Sequence[T]) -> list[Buffer]:
        """The memory of tensors that were laid out; to be called when all work on them was begun."""

    def empty(self, shape: Shape, like: T) -> T:
        """A new tensor of the same type, and in the same place."""

    def whole_numbers(self, numbers: Sequence[int], like: T) -> T:
        """A tensor of int64, in the same place."""

    def bytes_(self, count: int, like: T) -> T:
        """A tensor of so many bytes, in the same place."""

    def result(self, tensor: T, like: T) -> T:
        """What was received, where the caller's tensor is."""

    def adopt(self, memory: Any, shape: Shape, like: T) -> T:
        """The same for memory that the engine allocated."""

    def read(self, memory: Any) -> list[int]:
        """The int64 numbers in memory that the engine allocated."""

    def follow(self, outcome: OperationOutcome) -> OperationOutcome:
        """Have whatever uses the results wait for them, on a device that works by itself."""


def allreduce(
    adapter: Adapter[T],
    tensors: Sequence[T],
    how: Reduction,
    name: str | None,
    process_set: ProcessSet,
    *,
    grouped: bool = False,
    into: Sequence[T] | None = None,
) -> UnderWay[list[T]]:
    """Combine; the results are new tensors, or those of ``into``."""
    under_way, finish = _elementwise(adapter, Kind.ALLREDUCE, tensors, into, name, process_set, how, -1, grouped)
    return under_way.then(finish)


def allreduce_in_place(
    adapter: Adapter[T], tensor: T, how: Reduction, name: str | None, process_set: ProcessSet
) -> UnderWay[OperationOutcome]:
    """Combine one tensor where it is, for those who want to know more of the outcome."""
    here = [tensor]
    under_way, finish = _elementwise(adapter, Kind.ALLREDUCE, here, here, name, process_set, how)

    def finished(outcome: OperationOutcome) -> OperationOutcome:
        finish(outcome)
        return outcome

    return under_way.then(finished)


def broadcast(
    adapter: Adapter[T],
    tensors: Sequence[T],
    root: int,
    name: str | None,
    process_set: ProcessSet,
    *,
    into: Sequence[T] | None = None,
) -> UnderWay[list[T]]:
    """Copy the root's; the results are new tensors, or those of ``into``."""
    under_way, finish = _elementwise(adapter, Kind.BROADCAST, tensors, into, name, process_set, _NONE, root)
    return under_way.then(finish)


def _elementwise(
    adapter: Adapter[T],
    kind: Kind,
    tensors: Sequence[T],
    into: Sequence[T] | None,
    name: str | None,
    process_set: ProcessSet,
    how: Reduction,
    root: int = -1,
    grouped: bool = False,
) -> tuple[UnderWay[OperationOutcome], Callable[[OperationOutcome], list[T]]]:
    """Begin what has results as large as the inputs; and what makes the results, once it is over."""
    sent = [adapter.sent(tensor) for tensor in tensors]
    targets = adapter.targets(tensors, sent, into)
    inputs = adapter.buffers(sent)
    spec = OperationSpec(kind, name, forms(inputs), process_set, how, root, None, adapter.device, grouped)
    under_way = _start(adapter, spec, inputs, inputs if targets is sent else adapter.buffers(targets))
    if into is None:
        pairs = list(zip(targets, tensors, strict=True))
        return under_way, lambda _: [adapter.result(target, tensor) for target, tensor in pairs]
    given = list(into)
    copied = [(target, place) for target, place in zip(targets, given, strict=True) if target is not place]

    def finish(_: OperationOutcome) -> list[T]:
        for target, place in copied:
            adapter.put(target, place)
        return given

    return under_way, finish


def allgather(
    adapter: Adapter[T], tensors: Sequence[T], name: str | None, process_set: ProcessSet, *, grouped: bool = False
) -> UnderWay[list[GatheredRows[T]]]:
    """Concatenate rows."""
    sent = [adapter.sent(tensor) for tensor in tensors]
    # The bytes received tell the rows, except of rows without elements: those are sent as a number beside the tensor.
    numbers = [adapter.whole_numbers([_rows(tensor)], tensor) for tensor in sent if not _row_bytes(tensor)]
    inputs = adapter.buffers([*sent, *numbers])
    spec = OperationSpec(Kind.ALLGATHER, name, forms(inputs), process_set, device=adapter.device, grouped=grouped)
    under_way = _start(adapter, spec, inputs, ())
    like = list(tensors)

    def finish(outcome: OperationOutcome) -> list[GatheredRows[T]]:
        counted = iter([tuple(adapter.read(memory)) for memory in outcome.memory[len(like) :]])
        gathered = []
        for own, memory, received in zip(like, outcome.memory, outcome.received, strict=False):
            row_bytes = _row_bytes(own)
            rows = tuple(n // row_bytes for n in received) if row_bytes else next(counted)
            gathered.append(GatheredRows(adapter.adopt(memory, (sum(rows), *_width(own)), own), rows))
        return gathered

    return under_way.then(finish)


def alltoall(
    adapter: Adapter[T], tensor: T, splits: Sequence[int] | None, name: str | None, process_set: ProcessSet
) -> UnderWay[GatheredRows[T]]:
    """Exchange rows."""
    sent, rows, row_bytes = adapter.sent(tensor), _rows(tensor), _row_bytes(tensor)
    if not row_bytes:  # the bytes received tell the rows: a byte stands for each that has no elements
        counted = alltoall(adapter, adapter.bytes_(rows, sent), splits, name, process_set)
        return counted.then(
            lambda got: GatheredRows(adapter.empty((_rows(got.tensor), *_width(tensor)), tensor), got.rows)
        )
    set_size = len(process_set.members)
    splits = equal_splits(rows, set_size) if splits is None else splits_of(splits, rows, set_size)
    inputs = adapter.buffers([sent[: sum(splits)]])  # type: ignore[index]
    spec = OperationSpec(Kind.ALLTOALL, name, forms(inputs), process_set, splits=splits, device=adapter.device)
    under_way = _start(adapter, spec, inputs, ())

    def finish(outcome: OperationOutcome) -> GatheredRows[T]:
        received = tuple(n // row_bytes for n in outcome.received[0])
        return GatheredRows(adapter.adopt(outcome.memory[0], (sum(received), *_width(tensor)), tensor), received)

    return under_way.then(finish)


def reducescatter(
    adapter: Adapter[T],
    tensors: Sequence[T],
    how: Reduction,
    name: str | None,
    process_set: ProcessSet,
    *,
    grouped: bool = False,
) -> UnderWay[list[T]]:
    """Combine, and keep this rank's rows."""
    sent = [adapter.sent(tensor) for tensor in tensors]
    rank, members = session.engine().rank, process_set.members
    below = sum(member < rank for member in members)  # this rank's place in the set
    kept = [adapter.empty((scattered_rows(_rows(s), len(members), below), *_width(s)), s) for s in sent]
    inputs = adapter.buffers(sent)
    spec = OperationSpec(
        Kind.REDUCESCATTER, name, forms(inputs), process_set, how, device=adapter.device, grouped=grouped
    )
    under_way = _start(adapter, spec, inputs, adapter.buffers(kept))
    like = list(tensors)
    return under_way.then(lambda _: [adapter.result(tensor, own) for tensor, own in zip(kept, like, strict=True)])


def check(kind: Kind, tensors: Sequence[Any], dtype_of: Callable[[Any], DType]) -> None:
    """Refuse an empty list, what has no element type that is carried, and scalars where rows matter."""
    if not len(tensors):
        raise UsageError(
            f"grouped_{kind.name.lower()} of an empty list. There is nothing that the ranks could agree on. Leave the"
            " call out, on all ranks, where there are no tensors."
        )
    for tensor in tensors:
        dtype_of(tensor)
        if kind is not Kind.ALLREDUCE and kind is not Kind.BROADCAST:
            check_rows(kind.name.lower(), tensor.shape)


def _start(
    adapter: Adapter[Any], spec: OperationSpec, inputs: Sequence[Buffer], outputs: Sequence[Buffer]
) -> UnderWay[OperationOutcome]:
    under_way = session.engine().prepare(spec).start(inputs, outputs)
    return under_way if adapter.device == "cpu" else under_way.then(adapter.follow)


def _rows(tensor: Any) -> int:
    return int(tensor.shape[0])


def _width(tensor: Any) -> Shape:
    return tuple(tensor.shape[1:])


def _row_bytes(tensor: Any) -> int:
    nbytes: int = math.prod(tensor.shape[1:]) * tensor.dtype.itemsize
    return nbytes
