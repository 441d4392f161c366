"""A mover for several hosts: shared memory inside each host, another mover between leaders.

An allreduce has three stages: the workers of a host sum in shared memory, one leader of each host sums with the others'
over the network, and shows its host the result. A large one goes through them in chunks, and the workers of a host take
turns in leading (leader sets), so that one is on the network while another sums. Nobody coordinates that: the stages
inside a host are operations of the C core, submitted ahead, which its background thread carries out while a leader
waits for the network.

Between hosts a partial sum is rounded to the tensor's own type, or to one of 16 bits if that was asked for (``wire``):
then a host's sum is still exact, only half as many bytes are sent, and one chunk is rounded while another is on the
network. Where rounding could go wrong, and for operations that gain nothing, all ranks use the
other mover directly. Every rank gets the bits of its leader, and the leaders have the same.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hora.config.settings import Settings
from hora.engine.backend import OperationOutcome, UnderWay
from hora.engine.hosttable import INLINE_BYTES, HostOperation, HostTable
from hora.transport.arithmetic import bytes_of
from hora.transport.base import Finish, KeyValue, Mover, StartingMover
from hora.transport.exchange import done
from hora.transport.kernels import narrow_at, reduce_at, widen_at
from hora.transport.scratch import Scratch, unpack
from hora.types import Buffer, DType, Kind, ReduceOp, Reduction
from hora.wire.messages import Peer

__all__ = ["HierarchicalMover", "TwoStepReduction", "stages"]

_LEAST_BYTES, _MOST_BYTES = 256 << 10, 2 << 20  # of a chunk
_LEADER_SETS = 4  # at most
_AHEAD = 4  # chunks of a leader set that may be under way at once
_BETWEEN = 2  # of them between hosts: one is on the network while what came of the other is summed


class TwoStepReduction(NamedTuple):
    """How to reduce in two steps: ``inner`` inside hosts, after scaling; ``outer`` between them, before scaling."""

    inner: ReduceOp
    prescale: float
    outer: ReduceOp
    postscale: float
    divisor: int


def stages(dtype: DType, op: ReduceOp, prescale: float, postscale: float, divisor: int) -> TwoStepReduction | None:
    """The two steps, or None if the result could be wrong when what comes between has to fit the type.

    >>> stages(DType.FLOAT32, ReduceOp.AVERAGE, 0.5, 3.0, 4)
    TwoStepReduction(inner=<ReduceOp.SUM: 1>, prescale=0.5, outer=<ReduceOp.AVERAGE: 0>, postscale=3.0, divisor=4)
    >>> stages(DType.INT8, ReduceOp.AVERAGE, 1.0, 1.0, 4)   # the sum of a host may not fit 8 bits
    """
    inner = ReduceOp.SUM if op is ReduceOp.AVERAGE else op
    if op is ReduceOp.ADASUM:
        return None
    if dtype is DType.BOOL:
        return TwoStepReduction(inner, 1.0, inner, 1.0, 1)
    if not dtype.is_float:
        plain = op is not ReduceOp.AVERAGE and prescale == postscale == 1.0
        return TwoStepReduction(op, 1.0, op, 1.0, 1) if plain else None
    if dtype is DType.FLOAT16:  # a host's sum may exceed its range where the average does not: scale first
        if inner is ReduceOp.SUM:
            return TwoStepReduction(
                inner, prescale * postscale / (divisor if op is ReduceOp.AVERAGE else 1), inner, 1.0, 1
            )
        if op is ReduceOp.PRODUCT or prescale != 1.0:
            return None
    return TwoStepReduction(inner, prescale, op, postscale, divisor if op is ReduceOp.AVERAGE else 1)


class _Team(NamedTuple):
    """The ranks of an operation as this rank sees them.

    A leader set is one rank of each host; there are as many as every host has ranks for. Where there is nothing to
    share out the first is used, and its ranks are the leaders.
    """

    places: tuple[int, ...]  # in the host's table, of those that are on this host
    leader_sets: tuple[tuple[int, ...], ...]  # their ranks, ascending
    roots: tuple[int, ...]  # the place of this host's in each
    leader_set: int  # this rank's, -1 if it is in none

    @property
    def leaders(self) -> tuple[int, ...]:
        return self.leader_sets[0]

    @property
    def leads(self) -> bool:
        return self.leader_set == 0

    @property
    def shares(self) -> bool:
        """Whether this rank is not alone on its host."""
        return len(self.places) > 1


class HierarchicalMover(Mover):
    """The mover of one rank, over ``flat``, which all ranks have. One thread carries out all work, in one order."""

    narrows = True

    def __init__(
        self,
        generation: int,
        rank: int,
        peers: Sequence[Peer],
        store: KeyValue,
        settings: Settings,
        flat: StartingMover,
    ) -> None:
        self._rank, self._peers, self._flat = rank, tuple(peers), flat
        self._here = tuple(peer.rank for peer in peers if peer.host == peers[rank].host)
        self._table = HostTable(generation, rank, [peers[r] for r in self._here], store, settings)
        self._teams: dict[tuple[int, tuple[int, ...]], _Team] = {}
        self._scratch = Scratch()

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
        wire: DType | None = None,
    ) -> None:
        if self._rank not in contributors:
            return
        team = self._team(contributors)
        for dtype in dict.fromkeys(buffer.dtype for buffer in inputs):
            sources = [buffer for buffer in inputs if buffer.dtype is dtype and buffer.elements]
            targets = [buffer for buffer in outputs if buffer.dtype is dtype and buffer.elements]
            how = stages(wire or dtype, op, prescale, postscale, divisor)
            nbytes = sum(buffer.nbytes for buffer in sources)
            if not sources:
                continue
            if len(team.leaders) == 1 and (op is not ReduceOp.AVERAGE or divisor == len(contributors)):
                self._reduce_here(sources, targets, team, op, prescale, postscale)
            elif wire is not None and (
                how is None or nbytes <= INLINE_BYTES or len(team.leaders) in (1, len(contributors))
            ):
                self._reduce_narrow(
                    sources,
                    targets,
                    wire,
                    op=op,
                    prescale=prescale,
                    postscale=postscale,
                    members=members,
                    contributors=contributors,
                    divisor=divisor,
                )
            elif how is None or len(team.leaders) in (1, len(contributors)):
                self._flat.allreduce(
                    sources, targets, op=op, prescale=prescale, postscale=postscale, members=members,
                    contributors=contributors, divisor=divisor,
                )  # fmt: skip
            elif nbytes <= INLINE_BYTES:
                self._reduce_small(sources, targets, team, how)
            elif len(sources) == 1:
                self._reduce_large(sources[0], targets[0], team, how, wire)
            else:
                packed = self._pack(sources)
                self._reduce_large(packed, packed, team, how, wire)
                unpack(bytes_of(packed), targets)

    def allgather(self, input: Buffer, output: Buffer, *, nbytes: Sequence[int], members: tuple[int, ...]) -> None:
        team = self._team(members)
        hosts = [self._peers[rank].host for rank in members]
        together = sum(a != b for a, b in itertools.pairwise(hosts)) == len(team.leaders) - 1
        if not together or not sum(nbytes) or len(team.leaders) == len(members):
            self._flat.allgather(input, output, nbytes=nbytes, members=members)
            return
        block = _as_bytes(input)
        if team.shares:
            gathering = HostOperation(Kind.ALLGATHER, team.places, DType.UINT8, block.elements)
            memory = self._table.prepare(gathering).start([block], []).wait().memory[0]
            block = Buffer(ctypes.addressof(memory), DType.UINT8, (len(memory),), memory)
        if len(team.leaders) == 1:
            bytes_of(output)[:] = bytes_of(block)
            return
        if team.leads:
            brought = dict.fromkeys(hosts, 0)
            for host, count in zip(hosts, nbytes, strict=True):
                brought[host] += count
            self._flat.allgather(block, output, nbytes=list(brought.values()), members=team.leaders)
        self._show(output, team)

    def broadcast(self, buffer: Buffer, output: Buffer, *, root: int, members: tuple[int, ...]) -> None:
        team, flat = self._team(members, root), self._flat
        if self._rank == root and buffer.address != output.address:
            bytes_of(output)[:] = bytes_of(buffer)
        if len(team.leaders) == 1:
            self._show(output, team)
        else:
            self._show(output, team, lambda piece: flat.broadcast(piece, piece, root=root, members=team.leaders))

    def alltoall(
        self, input: Buffer, output: Buffer, *, sent: Sequence[int], received: Sequence[int], members: tuple[int, ...]
    ) -> None:
        self._flat.alltoall(input, output, sent=sent, received=received, members=members)

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
        self._flat.reducescatter(
            input, output, op=op, prescale=prescale, postscale=postscale, counts=counts, members=members,
            divisor=divisor,
        )  # fmt: skip

    def abort(self, reason: str) -> None:
        self._table.abort(reason)
        self._flat.abort(reason)

    def close(self) -> None:
        self._table.close()
        self._flat.close()

    def _team(self, ranks: tuple[int, ...], root: int = -1) -> _Team:
        """The lowest rank of each host leads its first leader set, the next the second; a root leads the first of its
        own."""
        team = self._teams.get((root, ranks))
        if team is None:
            hosts: dict[str, list[int]] = {}
            for rank in sorted(ranks, key=lambda rank: rank != root):
                hosts.setdefault(self._peers[rank].host, []).append(rank)
            leader_sets = [*zip(*hosts.values(), strict=False)][:_LEADER_SETS]
            mine = hosts[self._peers[self._rank].host]
            leader_set = mine.index(self._rank)
            team = _Team(
                places=tuple(self._here.index(rank) for rank in sorted(mine)),
                leader_sets=tuple(tuple(sorted(leaders)) for leaders in leader_sets),
                roots=tuple(self._here.index(rank) for rank in mine[: len(leader_sets)]),
                leader_set=leader_set if leader_set < len(leader_sets) else -1,
            )
            self._teams[root, ranks] = team
        return team

    # ---- reducing ----

    def _reduce_here(
        self, sources: Sequence[Buffer], targets: Sequence[Buffer], team: _Team, op: ReduceOp, prescale: float,
        postscale: float,
    ) -> None:  # fmt: skip
        """All are on this host."""
        for source, target in zip(sources, targets, strict=True):
            if team.shares:
                how = Reduction(op, prescale, postscale)
                task = HostOperation(Kind.ALLREDUCE, team.places, source.dtype, source.elements, 0, how)
                self._table.prepare(task).start([source], [target]).wait()
            else:
                _reduce((source.address,), target, op, prescale, postscale)

    def _reduce_small(
        self, sources: Sequence[Buffer], targets: Sequence[Buffer], team: _Team, how: TwoStepReduction
    ) -> None:
        """Everything travels with the arrivals; only the leader waits for the sum, the others for the result."""
        packed = self._pack(sources)
        inside = Reduction(how.inner, how.prescale)
        summing = HostOperation(Kind.ALLREDUCE, team.places, packed.dtype, packed.elements, 0, inside)
        brings = None
        if not team.shares:
            _reduce((packed.address,), packed, how.inner, how.prescale)
        elif team.leads:
            self._table.prepare(summing).run(packed.address, packed)
        else:
            brought = self._scratch.take(
                "brought", packed.nbytes
            )  # a place of its own: the sum may come after the result
            brought[:] = bytes_of(packed)
            brings = self._table.prepare(summing).start_at(brought.ctypes.data, brought)
        if team.leads:
            self._start_between(packed, team.leaders, how)()
        if team.shares:
            self._table.prepare(_showing(team, packed, 0)).run(packed.address, packed)
        if brings is not None:
            brings.wait()
        unpack(bytes_of(packed), targets)

    def _reduce_narrow(
        self, sources: Sequence[Buffer], targets: Sequence[Buffer], wire: DType, *, op: ReduceOp, prescale: float,
        postscale: float, members: tuple[int, ...], contributors: tuple[int, ...], divisor: int,
    ) -> None:  # fmt: skip
        """As the narrower type all the way: where rounding in between saves nothing."""
        packed = self._pack(sources)
        small = self._narrow(packed, wire, "all")
        self.allreduce(
            [small], [small], op=op, prescale=prescale, postscale=postscale, members=members, contributors=contributors,
            divisor=divisor,
        )  # fmt: skip
        wide = self._scratch.take("wide", packed.nbytes)
        widen_at(wide.ctypes.data, small.address, small.elements, wire)
        unpack(wide, targets)

    def _reduce_large(
        self, source: Buffer, target: Buffer, team: _Team, how: TwoStepReduction, wire: DType | None = None
    ) -> None:
        """In chunks, each through the three stages."""
        size = min(max(_LEAST_BYTES, source.nbytes // (_AHEAD * len(team.leader_sets))), _MOST_BYTES)
        flow = _Flow(self._table, team, how, _cut(source, size), _cut(target, size))
        under_way: deque[tuple[int, Finish]] = deque()

        def give_oldest() -> None:
            number, finish = under_way.popleft()
            finish()
            flow.give(number)

        for turn, number in enumerate(flow.led()):
            begin = self._start_between if wire is None else functools.partial(self._start_narrow, wire)
            between = begin(flow.take(number), team.leader_sets[team.leader_set], how, turn % _BETWEEN)
            under_way.append((number, between))
            if len(under_way) == _BETWEEN:
                give_oldest()
        while under_way:
            give_oldest()
        flow.finish()

    def _start_narrow(
        self, wire: DType, piece: Buffer, leaders: tuple[int, ...], how: TwoStepReduction, place: int
    ) -> Finish:
        """Begin the stage between hosts with rounded values."""
        small = self._narrow(piece, wire, str(place))
        between = self._start_between(small, leaders, how, place)

        def finish() -> None:
            between()
            widen_at(piece.address, small.address, piece.elements, wire)

        return finish

    def _start_between(self, piece: Buffer, leaders: tuple[int, ...], how: TwoStepReduction, place: int = 0) -> Finish:
        """Begin the stage between hosts, in place, and return what waits for its end."""
        if len(leaders) > 2:
            self._flat.allreduce(
                [piece], [piece], op=how.outer, prescale=1.0, postscale=how.postscale, members=leaders,
                contributors=leaders, divisor=how.divisor,
            )  # fmt: skip
            return done
        # Two show each other what they have: as many bytes as if each summed a half, but they wait only once.
        size = piece.nbytes
        both = self._scratch.take(f"both {place}", 2 * size)
        row = Buffer(both.ctypes.data, DType.UINT8, (2 * size,), both)
        shown = self._flat.start_allgather(_as_bytes(piece), row, nbytes=(size, size), members=leaders)

        def finish() -> None:
            shown()
            _reduce((row.address, row.address + size), piece, how.outer, 1.0, how.postscale, how.divisor)

        return finish

    # ---- showing ----

    def _show(self, output: Buffer, team: _Team, fetch: Callable[[Buffer], None] = lambda piece: None) -> None:
        """Let the host have what its leader has, a chunk at a time, each after the leader has fetched it."""
        under_way: deque[UnderWay[OperationOutcome]] = deque()
        for number, piece in enumerate(_cut(_as_bytes(output), _MOST_BYTES)):
            if team.leads:
                fetch(piece)
            if team.shares and piece.elements:
                if len(under_way) == _AHEAD:
                    under_way.popleft().wait()
                showing = self._table.prepare(_showing(team, piece, number % _AHEAD))
                under_way.append(showing.start([piece], [piece]))
        for shown in under_way:
            shown.wait()

    # ---- memory ----

    def _pack(self, buffers: Sequence[Buffer]) -> Buffer:
        packed, dtype = self._scratch.pack(buffers), buffers[0].dtype
        return Buffer(packed.ctypes.data, dtype, (packed.size // dtype.itemsize,), packed)

    def _narrow(self, buffer: Buffer, wire: DType, place: str) -> Buffer:
        """Its values, rounded."""
        memory = self._scratch.take(f"narrow {place}", buffer.elements * wire.itemsize)
        narrow_at(memory.ctypes.data, buffer.address, buffer.elements, wire)
        return Buffer(memory.ctypes.data, wire, (buffer.elements,), memory)


class _Flow:
    """The chunks of one large allreduce on their way through the table of this host, as one of its workers sees them.

    Chunk ``k`` is led by leader set ``k % leader_sets``. What can be submitted before its turn is, so that a worker
    that waits for the network keeps nobody waiting: ``_AHEAD / 2`` rounds of leader sets ahead, and at most ``_AHEAD``
    are under way.
    """

    def __init__(
        self, table: HostTable, team: _Team, how: TwoStepReduction, sources: Sequence[Buffer], targets: Sequence[Buffer]
    ) -> None:
        self._table, self._team, self._how = table, team, how
        self._sources, self._targets = sources, targets
        self._slots = _AHEAD * len(team.leader_sets)
        self._brought = self._done = 0  # chunks
        self._sums: dict[int, UnderWay[OperationOutcome]] = {}
        self._shown: dict[int, UnderWay[OperationOutcome]] = {}

    def led(self) -> range:
        """The chunks that this worker leads."""
        return (
            range(self._team.leader_set, len(self._sources), len(self._team.leader_sets))
            if self._team.leader_set >= 0
            else range(0)
        )

    def take(self, k: int) -> Buffer:
        """What this host has for a chunk that this worker leads."""
        if self._team.shares:
            self._bring(k + self._slots // 2)
            self._sums.pop(k).wait()
        else:
            _reduce((self._sources[k].address,), self._targets[k], self._how.inner, self._how.prescale)
        return self._targets[k]

    def give(self, k: int) -> None:
        """Show the host what came of it."""
        if self._team.shares:
            self._show(k)

    def finish(self) -> None:
        if self._team.shares:
            self._bring(len(self._sources) - 1)
            while self._done < len(self._sources):
                self._retire()

    def _bring(self, last: int) -> None:
        """Submit the chunks up to this one."""
        while self._brought <= min(last, len(self._sources) - 1):
            if self._brought - self._done == self._slots:
                self._retire()
            k, source = self._brought, self._sources[self._brought]
            slot, inside = k % self._slots, Reduction(self._how.inner, self._how.prescale)
            task = HostOperation(Kind.ALLREDUCE, self._team.places, source.dtype, source.elements, slot, inside)
            self._sums[k] = self._table.prepare(task).start([source], [self._targets[k]])
            if k not in self.led():
                self._show(k)
            self._brought += 1

    def _retire(self) -> None:
        """Wait until the oldest chunk is done; a sum is there before anything comes of it."""
        for stage in (self._sums, self._shown):
            if (under_way := stage.pop(self._done, None)) is not None:
                under_way.wait()
        self._done += 1

    def _show(self, k: int) -> None:
        piece, leader_set = self._targets[k], k % len(self._team.leader_sets)
        showing = self._table.prepare(_showing(self._team, piece, k % self._slots, leader_set))
        self._shown[k] = showing.start([piece], [piece])


def _showing(team: _Team, piece: Buffer, slot: int, leader_set: int = 0) -> HostOperation:
    return HostOperation(Kind.BROADCAST, team.places, piece.dtype, piece.elements, slot, root=team.roots[leader_set])


def _reduce(
    sources: Sequence[int], target: Buffer, op: ReduceOp, prescale: float, postscale: float = 1.0, divisor: int = 1
) -> None:
    """Combine what is at these addresses."""
    reduce_at(target.address, sources, target.elements, target.dtype, op, prescale, postscale, divisor)


def _as_bytes(buffer: Buffer) -> Buffer:
    return Buffer(buffer.address, DType.UINT8, (buffer.nbytes,), buffer.owner)


def _cut(buffer: Buffer, size: int) -> list[Buffer]:
    """The buffer in pieces of about ``size`` bytes; at least one."""
    item = buffer.dtype.itemsize
    step = max(1, size // item)
    return [
        Buffer(buffer.address + low * item, buffer.dtype, (min(step, buffer.elements - low),), buffer.owner)
        for low in range(0, max(1, buffer.elements), step)
    ]
