"""The one Protocol for moving bytes.

A *mover* carries operations that are already agreed on: every member calls it with the same operations in the same
order. Agreement, fusion and naming happen one layer up, in ``engine``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from hora.types import Buffer, ReduceOp

__all__ = ["Finish", "KeyValue", "Mover", "StartingMover"]


class KeyValue(Protocol):
    """A store that all ranks of a generation share; by it movers find each other."""

    def set(self, key: str, value: bytes) -> None: ...

    def get(self, key: str, timeout_s: float) -> bytes | None:
        """The value, once it is set; None if it is not in time."""


class Mover(Protocol):
    """Moves bytes between the members of one process set; every method blocks until this rank's part is done.

    ``members`` are global ranks in ascending order and this rank is one of them. Buffers are CPU memory, unless the
    mover says in ``carries`` that it takes that of other devices too (``transport.nccl``). ``contributors`` are the
    members that brought data: one that has joined brings none and passes no inputs or outputs. A mover that says it
    ``narrows`` may be told a ``wire`` of 16 bits with an allreduce of FLOAT32: the type to round to between hosts.
    """

    carries: tuple[str, ...] = ()
    narrows: bool = False

    def mark(self) -> Any:
        """Of one that ``carries``: the event after which all that was queued on the device is finished."""
        return None

    def allocate(self, nbytes: int, like: Buffer) -> Any:
        """Of one that ``carries``: a tensor of bytes on the device of ``like``."""
        return None

    def allreduce(
        self,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        *,
        op: ReduceOp,
        prescale: float,
        postscale: float,
        members: tuple[int, ...],
        contributors: tuple[int, ...],
        divisor: int,
    ) -> None:
        """``out = postscale * reduce(prescale * in_i) / divisor`` (``divisor`` is for AVERAGE), in rank order."""

    def allgather(self, input: Buffer, output: Buffer, *, nbytes: Sequence[int], members: tuple[int, ...]) -> None:
        """Concatenate the members' bytes; member ``i`` brings ``nbytes[i]``."""

    def broadcast(self, buffer: Buffer, output: Buffer, *, root: int, members: tuple[int, ...]) -> None:
        """Copy the root's (a global rank) buffer into every member's output."""

    def alltoall(
        self, input: Buffer, output: Buffer, *, sent: Sequence[int], received: Sequence[int], members: tuple[int, ...]
    ) -> None:
        """Send ``sent[i]`` bytes to member ``i`` and receive ``received[i]`` bytes from it, in member order."""

    def reducescatter(
        self,
        input: Buffer,
        output: Buffer,
        *,
        op: ReduceOp,
        prescale: float,
        postscale: float,
        counts: Sequence[int],
        members: tuple[int, ...],
        divisor: int,
    ) -> None:
        """Reduce, then keep only this rank's ``counts[i]`` elements."""

    def abort(self, reason: str) -> None:
        """Make an operation that is under way, and all later ones, raise soon. Called from another thread."""

    def close(self) -> None:
        """Free everything; safe to call twice and after a failure."""


Finish = Callable[[], None]  # waits for the end of what was begun


class StartingMover(Mover, Protocol):
    """A mover that can have several gatherings under way."""

    def start_allgather(
        self, input: Buffer, output: Buffer, *, nbytes: Sequence[int], members: tuple[int, ...]
    ) -> Finish:
        """Begin an allgather. All members begin theirs in the same order, and end them in that order."""
