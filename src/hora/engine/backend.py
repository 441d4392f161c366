"""The seam inside the engine: how one generation of workers agrees on operations and carries them out.

There are two backends. ``engine.table`` agrees in a table in shared memory (one host, the C core): the last rank to
arrive at an operation puts it on a schedule that all ranks follow. ``engine.talk`` agrees by messages through the hub
and moves data with a ``transport.Mover`` (Gloo, MPI, NCCL, the in-process fake). ``engine.split`` puts the two side by
side, where tensors on GPUs are used on one host.

Both keep ULFM's promise: every call returns or raises, on every live rank, within its deadline.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from hora.engine.request import Request
from hora.transport.base import Buffer

__all__ = ["Backend", "Event", "NotFinite", "Outcome", "Pending", "RankState", "Snapshot", "Ticket", "What"]


class NotFinite(NamedTuple):
    """The first inf or nan that one rank brought to an allreduce."""

    rank: int  # -1: nobody's, the sum of what was brought is too large
    segment: int
    element: int  # of the segment
    is_nan: bool


class Outcome(NamedTuple):
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


class Ticket(Protocol):
    """A submitted operation. Opaque to everyone but the backend that issued it."""

    request: Request


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


class What(enum.IntEnum):
    """What happened to an operation, for the timeline. The numbers are the C core's (``enum trace``)."""

    SUBMITTED = 0  # on this rank
    ARRIVED = 1  # ``rank`` had submitted it
    AGREED = 2  # all had
    BEGIN = 3  # this rank began to move data; ``detail`` operations together
    END = 4  # finished on this rank; ``detail`` is 0 if it succeeded


class Event(NamedTuple):
    """One moment of an operation, on the monotonic clock of the host."""

    time_ns: int
    request: Request
    what: What
    rank: int
    detail: int


class Backend(Protocol):
    """Agreement and movement for the workers of one generation. Thread-safe."""

    def submit(self, request: Request, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Ticket:
        """Hand an operation over; never blocks. ``outputs`` is empty for ALLGATHER, ALLTOALL and BARRIER.

        Raises DuplicateNameError, or ShutDownError / PeerLostError if this generation is over.
        """

    def done(self, ticket: Any) -> bool:
        """True once ``wait`` would not block."""

    def wait(self, ticket: Any) -> Outcome:
        """Block until the operation finished, or raise its failure. Stays interruptible by Ctrl-C."""

    def join(self, average_active: bool) -> int:
        """Contribute nothing to further allreduces until every rank has joined; returns the last rank to join."""

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

    def events(self) -> list[Event]:
        """What happened since the last call."""

    def leave(self) -> None:
        """This rank shuts down in good order: peers that still need it get ShutDownError."""

    def close(self) -> None:
        """Free everything. Safe to call twice and after a failure."""
