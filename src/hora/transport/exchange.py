"""A mover over three primitives: exchange, gather and broadcast bytes. Gloo and MPI are such movers.

They only move bytes; the arithmetic is ours (``transport.kernels``). An allreduce sends every rank its share of the
vector from all others, reduces the share in rank order, and gathers the shares: as many bytes on the wire as a ring,
but with every element type, half types summed in float32, and the same bits on every rank whether fused or not. Small
vectors are gathered whole, which takes one exchange instead of two; so are those of two ranks, as no more bytes move.

Large vectors go in pieces, a few under way at once. Of one large message in each direction Gloo sends one after the
other: over a link of 1 Gbit/s, 64 MB between two hosts took 1.04 s whole, and takes 0.57 s in pieces.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from hora.transport.arithmetic import Array, adasum, bytes_of
from hora.transport.base import Finish, StartingMover
from hora.transport.kernels import reduce_parts
from hora.transport.scratch import Scratch, unpack
from hora.types import Buffer, DType, ReduceOp

__all__ = ["SMALL_BYTES", "ExchangeMover", "done", "pieces"]

SMALL_BYTES = 16 * 2**10
_PIECE_BYTES = 512 << 10  # to each peer at a time; holds whole elements of every type
_AHEAD = 3  # pieces that may be under way


def done() -> None:
    """The ``Finish`` of what is over already."""


class ExchangeMover(StartingMover, ABC):
    """The mover of one rank. Not thread-safe: one thread carries out all work, in the order all ranks keep."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._scratch = Scratch()

    # ---- what a transport provides ----

    @abstractmethod
    def _exchange(
        self, source: Array, sent: list[int], target: Array, received: list[int], ranks: tuple[int, ...]
    ) -> None:
        """Send ``sent[i]`` bytes to the i-th rank and receive ``received[i]`` from it."""

    @abstractmethod
    def _start_gather(self, source: Array, target: Array, sizes: list[int], ranks: tuple[int, ...]) -> Finish:
        """Begin to concatenate what the ranks bring: the i-th brings ``sizes[i]`` bytes."""

    @abstractmethod
    def _broadcast(self, target: Array, position: int, ranks: tuple[int, ...]) -> None:
        """Make every rank's ``target`` what it is on the rank at ``position``."""

    @abstractmethod
    def abort(self, reason: str) -> None:
        """See ``Mover``."""

    @abstractmethod
    def close(self) -> None:
        """See ``Mover``."""

    # ---- what is made of it ----

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
            return  # the result is for those who brought data
        for dtype in dict.fromkeys(buffer.dtype for buffer in inputs):
            sources = [buffer for buffer in inputs if buffer.dtype is dtype]
            targets = [buffer for buffer in outputs if buffer.dtype is dtype]
            total = sum(buffer.nbytes for buffer in sources)
            if op is ReduceOp.ADASUM or total <= SMALL_BYTES or len(contributors) == 1:
                self._reduce_whole(sources, targets, dtype, op, prescale, postscale, contributors, divisor)
            elif len(contributors) == 2:
                self._reduce_pair(sources, targets, dtype, op, prescale, postscale, contributors, divisor)
            else:
                self._reduce_shares(sources, targets, dtype, op, prescale, postscale, contributors, divisor)

    def allgather(self, input: Buffer, output: Buffer, *, nbytes: Sequence[int], members: tuple[int, ...]) -> None:
        self.start_allgather(input, output, nbytes=nbytes, members=members)()

    def start_allgather(
        self, input: Buffer, output: Buffer, *, nbytes: Sequence[int], members: tuple[int, ...]
    ) -> Finish:
        return self._start_gather(bytes_of(input), bytes_of(output), list(nbytes), members)

    def broadcast(self, buffer: Buffer, output: Buffer, *, root: int, members: tuple[int, ...]) -> None:
        target = bytes_of(output)
        if self._rank == root and buffer.address != output.address:
            target[:] = bytes_of(buffer)
        self._broadcast(target, members.index(root), members)

    def alltoall(
        self, input: Buffer, output: Buffer, *, sent: Sequence[int], received: Sequence[int], members: tuple[int, ...]
    ) -> None:
        self._exchange(bytes_of(input)[: sum(sent)], list(sent), bytes_of(output), list(received), members)

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
        item, mine = input.dtype.itemsize, counts[members.index(self._rank)]
        sent = [count * item for count in counts]
        received = self._scratch.take("received", mine * item * len(members))
        self._exchange(bytes_of(input), sent, received, [mine * item] * len(members), members)
        parts = list(received.view(input.dtype.numpy).reshape(len(members), mine))
        result = reduce_parts(parts, input.dtype, op, prescale, postscale, divisor)
        bytes_of(output)[:] = result.view("uint8")

    # ---- reducing ----

    def _reduce_whole(
        self, sources: Sequence[Buffer], targets: Sequence[Buffer], dtype: DType, op: ReduceOp, prescale: float,
        postscale: float, ranks: tuple[int, ...], divisor: int,
    ) -> None:  # fmt: skip
        """Gather all vectors and reduce them here."""
        packed = self._scratch.pack(sources)
        everything = self._scratch.take("received", packed.size * len(ranks))
        self._gather(packed, everything, [packed.size] * len(ranks), ranks)
        rows = everything.reshape(len(ranks), packed.size)
        low = 0
        for target in targets:
            parts = [row[low : low + target.nbytes].view(dtype.numpy) for row in rows]
            low += target.nbytes
            if op is ReduceOp.ADASUM:
                result = adasum(parts, dtype, prescale, postscale)
            else:
                result = reduce_parts(parts, dtype, op, prescale, postscale, divisor)
            bytes_of(target)[:] = result.view("uint8")

    def _reduce_pair(
        self, sources: Sequence[Buffer], targets: Sequence[Buffer], dtype: DType, op: ReduceOp, prescale: float,
        postscale: float, ranks: tuple[int, ...], divisor: int,
    ) -> None:  # fmt: skip
        """Two ranks show each other what they have, and both reduce it."""
        alone = len(sources) == 1  # then nothing need be packed
        packed = bytes_of(sources[0]) if alone else self._scratch.pack(sources)
        result = bytes_of(targets[0]) if alone else packed

        def begin(turn: int, piece: slice) -> Finish:
            size = piece.stop - piece.start
            both = self._scratch.take(f"both {turn % _AHEAD}", 2 * size)
            shown = self._start_gather(packed[piece], both, [size, size], ranks)

            def finish() -> None:
                shown()
                parts = [both[:size].view(dtype.numpy), both[size:].view(dtype.numpy)]
                result[piece] = reduce_parts(parts, dtype, op, prescale, postscale, divisor).view("uint8")

            return finish

        _in_turns(begin, pieces(packed.size, 2 * _PIECE_BYTES))
        if not alone:
            unpack(packed, targets)

    def _reduce_shares(
        self, sources: Sequence[Buffer], targets: Sequence[Buffer], dtype: DType, op: ReduceOp, prescale: float,
        postscale: float, ranks: tuple[int, ...], divisor: int,
    ) -> None:  # fmt: skip
        """Every rank reduces its share of each piece; then the shares are gathered."""
        number = len(ranks)
        count = sum(buffer.elements for buffer in sources)
        whole = -(-count // number) * number * dtype.itemsize
        alone = len(sources) == 1 and whole == sources[0].nbytes  # then nothing need be packed
        packed = bytes_of(sources[0]) if alone else self._scratch.pack(sources, whole)
        result = bytes_of(targets[0]) if alone else packed

        def begin(turn: int, piece: slice) -> Finish:
            shares = [(piece.stop - piece.start) // number] * number
            received = self._scratch.take("received", piece.stop - piece.start)
            self._exchange(packed[piece], shares, received, shares, ranks)
            parts = list(received.view(dtype.numpy).reshape(number, -1))
            mine = reduce_parts(parts, dtype, op, prescale, postscale, divisor).view("uint8")
            return self._start_gather(mine, result[piece], shares, ranks)

        _in_turns(begin, pieces(packed.size, number * _PIECE_BYTES))
        if not alone:
            unpack(packed, targets)

    def _gather(self, source: Array, target: Array, sizes: list[int], ranks: tuple[int, ...]) -> None:
        self._start_gather(source, target, sizes, ranks)()

    def _gather_by_broadcasts(self, source: Array, target: Array, sizes: list[int], ranks: tuple[int, ...]) -> None:
        """``_gather`` for a transport that cannot do this one at once."""
        low = 0
        for position, size in enumerate(sizes):
            part = target[low : low + size]
            if ranks[position] == self._rank:
                part[:] = source
            self._broadcast(part, position, ranks)
            low += size


def pieces(size: int, largest: int) -> Iterator[slice]:
    """Where to cut that many bytes, so that no piece is larger.

    >>> list(pieces(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    return (slice(low, min(low + largest, size)) for low in range(0, size, largest))


def _in_turns(begin: Callable[[int, slice], Finish], cuts: Iterator[slice]) -> None:
    """Begin them one after the other, and finish each before ``_AHEAD`` others have begun."""
    under_way: deque[Finish] = deque()
    for turn, piece in enumerate(cuts):
        if len(under_way) == _AHEAD:
            under_way.popleft()()
        under_way.append(begin(turn, piece))
    while under_way:
        under_way.popleft()()
