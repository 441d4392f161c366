"""The seam inside the engine: how one generation of workers agrees on operations and carries them out.

An operation is prepared once and started as often as it is wanted: ``backend.prepare(request)`` gives an
``Operation``, ``operation.start(inputs, outputs)`` what is ``UnderWay``, and ``under_way.wait()`` its outcome.

There are two backends. ``engine.table`` agrees in a table in shared memory (the C core): the last rank to arrive at an
operation puts it on a schedule that all ranks follow. ``engine.message_backend`` agrees by messages through the hub and
moves data with a ``transport.Mover`` (Gloo, MPI, NCCL, the in-process fake). ``engine.split`` puts the two side by
side, where tensors on GPUs are used on one host.

Both keep ULFM's promise: every call returns or raises, on every live rank, within its deadline.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from hora.engine.request import Request
from hora.types import Buffer

__all__ = [
    "Backend",
    "EventKind",
    "NotFinite",
    "Operation",
    "OperationEvent",
    "OperationOutcome",
    "Pending",
    "RankState",
    "Snapshot",
    "UnderWay",
]

T = TypeVar("T")
U = TypeVar("U")


class NotFinite(NamedTuple):
    """The first inf or nan that one rank brought to an allreduce."""

    rank: int  # -1: nobody's: the sum of what was brought, or what is rounded between hosts, is too large
    segment: int
    element: int  # of the segment
    is_nan: bool


class OperationOutcome(NamedTuple):
    """What an operation brought besides filling its outputs.

    ``memory`` holds one writable object with the buffer protocol for each segment of an allgather or alltoall, whose
    size no rank knew beforehand; ``received`` the bytes that came from each member, per segment. Of tensors on a GPU
    ``finished`` is the event after which all is there, and memory is a tensor of bytes. ``not_finite`` says of an
    allreduce which ranks brought inf or nan, the same on all ranks, if the backend ``finds_not_finite``.
    """

    memory: tuple[Any, ...] = ()
    received: tuple[tuple[int, ...], ...] = ()
    finished: Any = None
    not_finite: tuple[NotFinite, ...] = ()


class UnderWay(Generic[T]):
    """An operation that was started. Whoever has it may wait for its end; who does not wait leaves it to go on."""

    __slots__ = ()
    request: Request

    def done(self) -> bool:
        """True once ``wait`` would not block."""
        raise NotImplementedError

    def wait(self) -> T:
        """Block until the operation finished, or raise its failure. Once only. Stays interruptible by Ctrl-C."""
        raise NotImplementedError

    def then(self, change: Callable[[T], U]) -> UnderWay[U]:
        """The same operation with its result changed."""
        return _Changed(self, change)


class _Changed(UnderWay[U]):
    __slots__ = ("_before", "_change", "request")

    def __init__(self, before: UnderWay[T], change: Callable[[T], U]) -> None:
        self.request, self._before, self._change = before.request, before, change

    def done(self) -> bool:
        return self._before.done()

    def wait(self) -> U:
        return self._change(self._before.wait())


class Operation:
    """One request, ready to be carried out any number of times, once at a time. It ends with its generation: what is
    started later raises."""

    __slots__ = ()
    request: Request

    def start(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> UnderWay[OperationOutcome]:
        """Begin it; never blocks. ``outputs`` is empty for ALLGATHER, ALLTOALL and BARRIER.

        Raises DuplicateNameError, or ShutDownError / PeerLostError if this generation is over.
        """
        raise NotImplementedError

    def start_at(self, address: int, owner: object) -> UnderWay[OperationOutcome]:
        """The same for one tensor of the host, in place; ``owner`` keeps its memory alive."""
        segment = self.request.segments[0]
        here = (Buffer(address, segment.dtype, segment.shape, owner),)
        return self.start(here, here)

    def run(self, address: int, owner: object) -> None:
        """Carry it out on the memory of one tensor, in place; ``owner`` keeps it alive, also if this raises while the
        core may still write there."""
        self.start_at(address, owner).wait()


class RankState(NamedTuple):
    """One rank as its peers see it."""

    rank: int
    pid: int
    blocked: bool  # every thread of it that submits operations is waiting inside Hora
    waiting_on: tuple[tuple[str, tuple[int, ...]], ...]  # (name, members) of what those threads wait for
    silent: bool = False  # its process is stopped, or does not answer


class Pending(NamedTuple):
    """An operation that some members have submitted and others have not."""

    name: str
    members: tuple[int, ...]
    requests: dict[int, Request]  # by the ranks that arrived
    age_s: float  # since the first of them
    missing: tuple[int, ...]


class Snapshot(NamedTuple):
    """The state of agreement at one moment; ``progress`` changes whenever anything moves."""

    progress: int
    ranks: tuple[RankState, ...]
    pending: tuple[Pending, ...]


class EventKind(enum.IntEnum):
    """What happened to an operation, for the timeline. The numbers are the C core's."""

    # core.h: enum trace TRACE_
    SUBMITTED = 0  # on this rank
    ARRIVED = 1  # ``rank`` had submitted it
    AGREED = 2  # all had
    BEGIN = 3  # this rank began to move data; ``detail`` operations together
    END = 4  # finished on this rank; ``detail`` is 0 if it succeeded


class OperationEvent(NamedTuple):
    """One moment of an operation, on the monotonic clock of the host."""

    time_ns: int
    request: Request
    what: EventKind
    rank: int
    detail: int


class Backend(Protocol):
    """Agreement and movement for the workers of one generation. Thread-safe.

    What a backend can do beyond the collectives is said by attributes, and done by methods that do nothing where it
    cannot.
    """

    carries: tuple[str, ...] = ()  # devices besides the host whose memory may be given
    narrows: bool = False  # whether a Reduction may say ``wire``
    finds_not_finite: bool = False  # whether outcomes of allreduces name who brought inf or nan
    shares_memory: bool = False  # whether ``allocate`` gives memory

    def prepare(self, request: Request) -> Operation:
        """Make ready to carry this out, once or again and again."""

    def join(self, average_active: bool, begun: Callable[[], None] = lambda: None) -> int:
        """Contribute nothing to further allreduces until every rank has joined; returns the last rank to join.

        ``begun`` is called once the others can see that this rank has joined.
        """

    def snapshot(self) -> Snapshot:
        """For stall and deadlock reports."""

    def fail(self, pending: Pending, kind: str, text: str) -> None:
        """Make every wait for this operation raise; ``kind`` is "deadlock", "stall" or "mismatch". The first wins."""

    def give_up(self, rank: int, status: str) -> None:
        """Go on as if this rank had died, on all ranks: it is stopped, and will not say so itself."""

    def python_stack(self, rank: int, timeout_s: float) -> str:
        """The Python stack of another rank's threads, or why it could not be had."""

    def waiting(self) -> bool:
        """Whether any operation of this rank is in flight: cheap, to find out whether a snapshot is worth making."""

    def say(self, text: str) -> None:
        """Leave last words for the others, such as the exception that ends this process."""

    def trace(self, on: bool) -> None:
        """Begin or stop recording events."""

    def events(self) -> list[OperationEvent]:
        """What happened since the last call."""

    def help(self) -> None:
        """Get on with what was agreed, as far as that needs no waiting: for threads that pass by, such as hooks."""
        return None

    def allocate(self, nbytes: int) -> Any:
        """Writable memory that all workers of the host share and can reduce in place, or None if there is none."""
        return None

    def shares(self, address: int, nbytes: int) -> bool:
        """Whether peers can reach this memory."""
        return False

    def serve(self, nbytes: int) -> bool:
        """Let tensors of exactly this size be allocated in such memory, if ``hora run`` preloaded its allocator."""
        return False

    def leave(self) -> None:
        """This rank shuts down in good order: peers that still need it get ShutDownError."""

    def close(self) -> None:
        """Free everything. Safe to call twice and after a failure."""
