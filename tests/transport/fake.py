"""A transport inside one process: for deterministic tests of whatever stands on a ``Mover``, and for simulations.

All ranks share one :class:`Exchange`. A mover puts its rank's part there and takes the others' once all are in. With
``longest_wait_s`` it blocks for them, for ranks that are threads. Without, it raises :class:`NotYet` and the same call
may be made again later, for ranks that one thread runs in turn (``tests/engine/simulate.py``).

The exchange also checks what a real network cannot: that every member makes the same call at the same point. If not, it
raises AssertionError with both calls, because then agreement has a bug.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from hora.errors import HorovodInternalError
from hora.transport.arithmetic import Array, adasum, bytes_of, reduce_parts
from hora.transport.base import Finish, Mover
from hora.types import Buffer, ReduceOp

__all__ = ["Exchange", "FakeMover", "NotYet"]


class NotYet(Exception):
    """Not all members have brought their part; make the same call again later."""


class _Slot:
    """One collective: what each member brought, and who has taken the result."""

    def __init__(self, call: tuple[Any, ...]) -> None:
        self.call = call
        self.parts: dict[int, list[Array]] = {}
        self.ordered: list[list[Array]] = []
        self.results: list[Array] = []  # of an allreduce: the first member computes it for all
        self.taken = 0


class Exchange:
    """The place where the ranks of one world meet. Thread-safe."""

    def __init__(self) -> None:
        self._slots: dict[tuple[tuple[int, ...], int], _Slot] = {}
        self._turns: dict[tuple[tuple[int, ...], int], int] = {}  # collectives done, by members and rank
        self._moved = threading.Condition()
        self.calls = 0  # collectives carried out

    def swap(
        self,
        rank: int,
        members: tuple[int, ...],
        call: tuple[Any, ...],
        parts: list[Array],
        longest_wait_s: float | None,
    ) -> _Slot:
        """Bring this rank's arrays and get the slot with every member's, ``ordered`` by rank."""
        with self._moved:
            turn = self._turns.get((members, rank), 0)
            slot = self._slots.setdefault((members, turn), _Slot(call))
            assert slot.call == call, f"rank {rank} of {members} came with {call}, another with {slot.call}"
            if rank not in slot.parts:
                slot.parts[rank] = [part.copy() for part in parts]
                self._moved.notify_all()
            if longest_wait_s is None and len(slot.parts) < len(members):
                raise NotYet
            deadline = time.monotonic() + (longest_wait_s or 0.0)
            while len(slot.parts) < len(members):
                if not self._moved.wait(max(0.0, deadline - time.monotonic())):
                    missing = [member for member in members if member not in slot.parts]
                    raise HorovodInternalError(f"ranks {missing} did not take part in {call} within {longest_wait_s} s")
            self._turns[members, rank] = turn + 1
            slot.taken += 1
            if slot.taken == len(members):
                del self._slots[members, turn]
                self.calls += 1
            slot.ordered = slot.ordered or [slot.parts[member] for member in members]
            return slot


class FakeMover(Mover):
    """The mover of one rank of an exchange.

    >>> exchange = Exchange()
    >>> array = np.array([1.0, 2.0], "float32")
    >>> from hora.types import DType
    >>> buffer = Buffer(array.ctypes.data, DType.FLOAT32, array.shape, array)
    >>> FakeMover(exchange, 0).allreduce([buffer], [buffer], op=ReduceOp.SUM, prescale=1.0, postscale=3.0, members=(0,),
    ...                                  contributors=(0,), divisor=1)
    >>> array
    array([3., 6.], dtype=float32)
    """

    def __init__(self, exchange: Exchange, rank: int, longest_wait_s: float | None = None) -> None:
        self._exchange, self._rank, self._longest_wait_s = exchange, rank, longest_wait_s
        self._closed = False

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
        if self._rank not in contributors:
            return
        shapes = tuple((b.dtype, b.shape) for b in inputs)
        call = ("allreduce", shapes, op, prescale, postscale, members, contributors, divisor)
        slot = self._swap(contributors, call, [bytes_of(b) for b in inputs])
        for i, output in enumerate(outputs):
            if i == len(slot.results):
                parts = [parts[i].view(output.dtype.numpy) for parts in slot.ordered]
                if op is ReduceOp.ADASUM:
                    slot.results.append(adasum(parts, output.dtype, prescale, postscale))
                else:
                    slot.results.append(reduce_parts(parts, output.dtype, op, prescale, postscale, divisor))
            bytes_of(output)[:] = slot.results[i].view("uint8")

    def allgather(self, input: Buffer, output: Buffer, *, nbytes: Sequence[int], members: tuple[int, ...]) -> None:
        call = ("allgather", input.dtype, tuple(nbytes), members)
        everyone = self._swap(members, call, [bytes_of(input)]).ordered
        bytes_of(output)[:] = np.concatenate([parts[0] for parts in everyone])

    def start_allgather(
        self, input: Buffer, output: Buffer, *, nbytes: Sequence[int], members: tuple[int, ...]
    ) -> Finish:
        return lambda: self.allgather(input, output, nbytes=nbytes, members=members)

    def broadcast(self, buffer: Buffer, output: Buffer, *, root: int, members: tuple[int, ...]) -> None:
        call = ("broadcast", buffer.dtype, buffer.shape, root, members)
        everyone = self._swap(members, call, [bytes_of(buffer)]).ordered
        bytes_of(output)[:] = everyone[members.index(root)][0]

    def alltoall(
        self, input: Buffer, output: Buffer, *, sent: Sequence[int], received: Sequence[int], members: tuple[int, ...]
    ) -> None:
        call = ("alltoall", input.dtype, input.shape[1:], members)
        cuts = np.cumsum(sent)
        everyone = self._swap(members, call, np.split(bytes_of(input)[: cuts[-1]], cuts[:-1])).ordered
        mine = [parts[members.index(self._rank)] for parts in everyone]
        assert [len(part) for part in mine] == list(received), f"expected {received} bytes"
        bytes_of(output)[:] = np.concatenate(mine)

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
        call = ("reducescatter", input.dtype, input.shape, op, prescale, postscale, tuple(counts), members, divisor)
        everyone = self._swap(members, call, [bytes_of(input)]).ordered
        me = members.index(self._rank)
        low = sum(counts[:me])
        parts = [parts[0].view(input.dtype.numpy)[low : low + counts[me]] for parts in everyone]
        result = reduce_parts(parts, input.dtype, op, prescale, postscale, divisor)
        bytes_of(output)[:] = result.view("uint8")

    def abort(self, reason: str) -> None:
        self._closed = True

    def close(self) -> None:
        self._closed = True

    def _swap(self, members: tuple[int, ...], call: tuple[Any, ...], parts: list[Array]) -> _Slot:
        if self._closed:
            raise HorovodInternalError("this transport is closed")
        return self._exchange.swap(self._rank, members, call, parts, self._longest_wait_s)
