"""The collectives on any framework's tensors: from what a caller gave to an operation under way.

``start`` carries out a ``Call`` on a list of tensors; a group is a list, a single tensor a list of one. How a kind
is begun depends only on which rows a rank gets of it (``hora.types.Rows``), so a new kind needs nothing here; a kind of
which that is not said raises, and is never carried out as another. What it takes to know of a framework is its
``Adapter``: ``ops.host`` has that of numpy arrays, on which TensorFlow, JAX and MXNet stand, and ``torch.submit`` that
of torch. Nothing here knows of gradients.

Promises: what cannot be carried is refused before anything is sent. A tensor is read where it lies if it can be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from hora.engine import session
from hora.engine.backend import OperationOutcome, UnderWay
from hora.engine.request import OperationSpec, forms
from hora.errors import UsageError
from hora.ops.call import Call, Results
from hora.ops.resolve import check_rows, equal_splits, scattered_rows, splits_of
from hora.types import Buffer, DType, Kind, ReduceOp, Reduction, Rows

__all__ = ["Adapter", "check", "start"]

T = TypeVar("T")
Shape = tuple[int, ...]

_NOTHING = Reduction(ReduceOp.SUM)  # how values are combined where none are


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


def start(
    adapter: Adapter[T], call: Call, tensors: Sequence[T], into: Sequence[T] | None = None
) -> UnderWay[Results[T]]:
    """Begin it. ``into`` is where the results of an elementwise one are to be written; new tensors if there is none."""
    return _BEGIN[call.kind.rows](adapter, call, tensors, into)


def check(kind: Kind, tensors: Sequence[Any], dtype_of: Callable[[Any], DType]) -> None:
    """Refuse an empty list, what has no element type that is carried, and scalars where rows matter."""
    if not len(tensors):
        raise UsageError(
            f"grouped_{kind.name.lower()} of an empty list. There is nothing that the ranks could agree on. Leave the"
            " call out, on all ranks, where there are no tensors."
        )
    for tensor in tensors:
        dtype_of(tensor)
        if kind.rows is not Rows.WHOLE:
            check_rows(kind.name.lower(), tensor.shape)


# ---- by the rows that a rank gets ------------------------------------------------------------------------------------


def _whole(adapter: Adapter[T], call: Call, tensors: Sequence[T], into: Sequence[T] | None) -> UnderWay[Results[T]]:
    """Results are as large as the inputs."""
    sent = [adapter.sent(tensor) for tensor in tensors]
    targets = adapter.targets(tensors, sent, into)
    inputs = adapter.buffers(sent)
    under_way = _start(adapter, call, inputs, inputs if targets is sent else adapter.buffers(targets))
    if into is None:
        pairs = list(zip(targets, tensors, strict=True))
        return under_way.then(lambda o: Results([adapter.result(t, tensor) for t, tensor in pairs], (), o))
    given = list(into)
    copied = [(target, place) for target, place in zip(targets, given, strict=True) if target is not place]

    def finish(outcome: OperationOutcome) -> Results[T]:
        for target, place in copied:
            adapter.put(target, place)
        return Results(given, (), outcome)

    return under_way.then(finish)


def _all(adapter: Adapter[T], call: Call, tensors: Sequence[T], _: object) -> UnderWay[Results[T]]:
    """What the ranks brought comes together."""
    sent = [adapter.sent(tensor) for tensor in tensors]
    # The bytes received tell the rows, except of rows without elements: those are sent as a number beside the tensor.
    numbers = [adapter.whole_numbers([_rows(tensor)], tensor) for tensor in sent if not _row_bytes(tensor)]
    under_way = _start(adapter, call, adapter.buffers([*sent, *numbers]), ())
    like = list(tensors)

    def finish(outcome: OperationOutcome) -> Results[T]:
        counted = iter([tuple(adapter.read(memory)) for memory in outcome.memory[len(like) :]])
        gathered, rows = [], []
        for own, memory, received in zip(like, outcome.memory, outcome.received, strict=False):
            row_bytes = _row_bytes(own)
            rows.append(tuple(n // row_bytes for n in received) if row_bytes else next(counted))
            gathered.append(adapter.adopt(memory, (sum(rows[-1]), *_width(own)), own))
        return Results(gathered, rows, outcome)

    return under_way.then(finish)


def _exchanged(adapter: Adapter[T], call: Call, tensors: Sequence[T], _: object) -> UnderWay[Results[T]]:
    """Every rank sends some rows to each."""
    (tensor,) = tensors
    sent, rows, row_bytes = adapter.sent(tensor), _rows(tensor), _row_bytes(tensor)
    if not row_bytes:  # the bytes received tell the rows: a byte stands for each that has no elements

        def without_elements(counted: Results[T]) -> Results[T]:
            shape = (_rows(counted.tensors[0]), *_width(tensor))
            return counted._replace(tensors=[adapter.empty(shape, tensor)])

        return _exchanged(adapter, call, [adapter.bytes_(rows, sent)], _).then(without_elements)
    set_size = len(call.process_set.members)
    splits = equal_splits(rows, set_size) if call.splits is None else splits_of(call.splits, rows, set_size)
    inputs = adapter.buffers([sent[: sum(splits)]])  # type: ignore[index]
    under_way = _start(adapter, call, inputs, (), splits)

    def finish(outcome: OperationOutcome) -> Results[T]:
        received = tuple(n // row_bytes for n in outcome.received[0])
        exchanged = adapter.adopt(outcome.memory[0], (sum(received), *_width(tensor)), tensor)
        return Results([exchanged], [received], outcome)

    return under_way.then(finish)


def _share(adapter: Adapter[T], call: Call, tensors: Sequence[T], _: object) -> UnderWay[Results[T]]:
    """This rank keeps its share of the rows."""
    sent = [adapter.sent(tensor) for tensor in tensors]
    rank, members = session.engine().rank, call.process_set.members
    below = sum(member < rank for member in members)  # this rank's place in the set
    kept = [adapter.empty((scattered_rows(_rows(s), len(members), below), *_width(s)), s) for s in sent]
    under_way = _start(adapter, call, adapter.buffers(sent), adapter.buffers(kept))
    pairs = list(zip(kept, tensors, strict=True))
    return under_way.then(lambda o: Results([adapter.result(tensor, own) for tensor, own in pairs], (), o))


_BEGIN: dict[Rows, Callable[..., UnderWay[Results[Any]]]] = {
    Rows.WHOLE: _whole,
    Rows.ALL: _all,
    Rows.EXCHANGED: _exchanged,
    Rows.SHARE: _share,
}


# ---- what they share -------------------------------------------------------------------------------------------------


def _start(
    adapter: Adapter[Any],
    call: Call,
    inputs: Sequence[Buffer],
    outputs: Sequence[Buffer],
    splits: tuple[int, ...] | None = None,
) -> UnderWay[OperationOutcome]:
    how = call.how if call.kind.ops else _NOTHING
    spec = OperationSpec(
        call.kind, call.name, forms(inputs), call.process_set, how, call.root, splits, adapter.device, call.grouped
    )
    under_way = session.engine().prepare(spec).start(inputs, outputs)
    return under_way if adapter.device == "cpu" else under_way.then(adapter.follow)


def _rows(tensor: Any) -> int:
    return int(tensor.shape[0])


def _width(tensor: Any) -> Shape:
    return tuple(tensor.shape[1:])


def _row_bytes(tensor: Any) -> int:
    nbytes: int = math.prod(tensor.shape[1:]) * tensor.dtype.itemsize
    return nbytes
