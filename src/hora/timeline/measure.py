"""The numbers of a timeline: how each rank's time divides, who is late, how well operations fuse, how fast data moves.

**Steps.** A step ends where a name is submitted again. Names that come much more or less often than the one that moves
most bytes, and those of Hora's own talk, do not count: they are of start-up, of an epoch's end, or several a step. The
first step of Hora's optimizer has other names than those after it, and ends with its roll call. With four steps or more
the first is left out (it holds start-up) and so is the last (its computation is not in the file), in all that is told:
who is late, how data moves, fusion and tensors too.

**Exposed communication.** A timeline knows when a worker submitted an operation and when that ended, not when the
worker stood still. After the last submission of a step nothing is left to hide behind, as ``optimizer.step()`` waits
for all: that stretch is taken as exposed. If operations are never in flight together, the calls were blocking, and all
of their time is. All the time that anything was in flight is the upper bound.

**A rank without a file** is seen through another's, which holds its arrivals; its data is taken to move as there.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

from hora.timeline.numbers import Fusion, Gap, KindTime, Late, Numbers, RankTime, Tensor, Unfinished
from hora.timeline.read import TimelineOperation, Track
from hora.timeline.sweep import (
    TINY_BYTES,
    RankOperation,
    Size,
    TimelineBatch,
    TimelineSpan,
    TimelineState,
    batches,
    clip,
    flights,
    last_of,
    sweep,
)

__all__ = ["measure", "steps_of"]

_BLOCKING = 0.05  # a smaller share of operations in flight together is chance
_MOST_VIEWED = 200_000  # operations seen through another rank's file; more would take minutes
_SHOWN = 1000  # tensors, at most
_UNKNOWN_BYTES = 1 << 20  # what an operation of unknown size is taken to have, to find the one that moves most
_OWN = re.compile(r"[a-z_]+\.hora\.")  # names that Hora gives to what it says to itself
_OPTIMIZER = re.compile(r"([a-z_]+\.gradients\.\d+)\.")  # and to the gradients of one DistributedOptimizer


def steps_of(lived: Sequence[RankOperation]) -> list[int]:
    """Where steps begin, as positions in the flights; empty if no name comes three times.

    >>> def named(name): return RankOperation(TimelineOperation(name, "ALLREDUCE", 0, {}), 0, -1)
    >>> steps_of([named(name) for name in "abcbacbca"])
    [0, 3, 6]
    >>> steps_of([named(name) for name in ["start", *"abxabxabx", "end", "end"]])
    [1, 4, 7]
    """
    counted = _names_of_steps(lived)
    if not counted:
        return []
    optimizers = {found[1] for name in counted if (found := _OPTIMIZER.match(name))}
    starts: list[int] = []
    seen: set[str] = set()
    called: set[str] = set()  # optimizers whose roll call was heard in this step
    for position, flight in enumerate(lived):
        name = flight.operation.name
        found = _OPTIMIZER.match(name)
        optimizer = found[1] if found and found[1] in optimizers else ""
        if name not in counted and not optimizer:
            continue
        if not starts or name in seen or optimizer in called:
            starts.append(position)
            seen.clear()
            called.clear()
        if name in counted:
            seen.add(name)
        if optimizer and name.startswith(f"{optimizer}.roll."):
            called.add(optimizer)
    return starts


def _names_of_steps(lived: Sequence[RankOperation]) -> set[str]:
    """The names by whose coming again a step is known."""
    counts = Counter(flight.operation.name for flight in lived)
    weights: Counter[str] = Counter()
    for flight in lived:
        if counts[flight.operation.name] >= 3:
            size = flight.operation.nbytes
            weights[flight.operation.name] += size if size >= 0 else _UNKNOWN_BYTES
    often = {name for name in weights if not _OWN.match(name)} or set(weights)
    if not often:
        return set()
    usual = counts[max(often, key=lambda name: (weights[name], counts[name]))]
    return {name for name in often if 2 / 3 <= counts[name] / usual <= 4 / 3}


def measure(tracks: Sequence[Track]) -> Numbers:
    """The numbers of tracks that are on one clock, with at least one operation in the first of them.

    >>> ops = [TimelineOperation("a", "ALLREDUCE", t, {0: t, 1: t + 60}, t + 60, t + 100, round=t // 200)
    ...        for t in range(0, 1000, 200)]
    >>> numbers = measure([Track("", 0, "Hora", operations=ops)])
    >>> mine = numbers.ranks[0]
    >>> mine.window_us, mine.steps, mine.wait_us, mine.move_us, mine.idle_us, mine.wait_for_us
    (600, 3, 180, 120, 300, {1: 180})
    >>> numbers.late[1].last, numbers.late[1].of, numbers.late[1].median_us, numbers.late[1].wait_us
    (3, 3, 60.0, 180)
    """
    named = {rank for track in tracks for op in track.everything for rank in op.ticks}
    world = sorted(named | {track.rank for track in tracks})
    moved = {track.rank: batches(track.operations) for track in tracks}
    sizes = {id(op): batch.size for found in moved.values() for batch in found for op in batch.operations}
    own = {track.rank: track for track in tracks if track.operations}
    reference = tracks[0]
    views = list(own)
    often = Counter(last_of(op) for op in reference.operations)
    absent = sorted((rank for rank in world if rank not in own), key=lambda rank: -often[rank])
    views += absent[: max(2, _MOST_VIEWED // max(1, len(reference.operations)))]
    ranks, gaps = [], []
    for rank in sorted(views):
        lived = flights(own.get(rank, reference), rank, sizes)
        if lived:
            time, found = _rank_time(rank, rank in own, lived)
            ranks.append(time)
            gaps += found if rank in own else []
    operations = [op for track in tracks for op in track.operations]
    times = {time.rank: time for time in ranks}
    looked_at = {
        rank: _steady(found, times[rank]) if rank in times else found for rank, found in moved.items()
    }  # fmt: skip
    mine, steady = times.get(reference.rank), looked_at[reference.rank]
    late = _late(world, looked_at.values(), ranks)
    lengths = [gap.length_us for gap in gaps]
    return Numbers(
        ranks=ranks,
        world=world,
        late=late,
        arrivals_known=any(entry.of for entry in late) or len(world) == 1,
        kinds=_kinds(steady),
        fusion=_fusion(steady, mine.steps if mine is not None else 0),
        tensors=_tensors(steady),
        gaps=sorted(gaps, key=lambda gap: -gap.length_us)[:5],
        gap_us=statistics.median(lengths) if lengths else 0.0,
        unfinished=_unfinished(tracks),
        failed=sum(op.failed for op in operations),
    )


def _rank_time(rank: int, own_file: bool, lived: list[RankOperation]) -> tuple[RankTime, list[Gap]]:
    segments = sweep(lived)
    starts = steps_of(lived)
    begins = [lived[position].submitted_us for position in starts]
    first, last = lived[0].submitted_us, max(flight.operation.end_us for flight in lived)
    lengths = [after - before for before, after in pairwise(begins)]
    if len(starts) >= 4:
        first, last, lengths = begins[1], begins[-1], lengths[1:]
    inside = clip(segments, [(first, last)])
    open_until, together = 0, 0
    for flight in lived:
        together += flight.submitted_us < open_until
        open_until = max(open_until, flight.operation.end_us)
    blocking = together < _BLOCKING * len(lived)
    if blocking or not starts:
        exposed = [part for part in inside if part.state is not TimelineState.IDLE]
    else:
        exposed = [p for p in clip(inside, _tails(lived, starts)) if p.state is not TimelineState.IDLE]
    by_state = _by_state(inside)
    bare = _by_state(exposed)
    time = RankTime(
        rank=rank,
        own_file=own_file,
        begin_us=first,
        window_us=last - first,
        steps=len(lengths),
        all_steps=len(starts),
        step_us=statistics.median(lengths) if lengths else 0.0,
        step_p90_us=_p90(lengths),
        move_us=by_state[TimelineState.MOVE],
        copy_us=by_state[TimelineState.COPY],
        queue_us=by_state[TimelineState.QUEUE],
        wait_us=by_state[TimelineState.WAIT],
        idle_us=by_state[TimelineState.IDLE],
        blocking=blocking,
        exposed_us=sum(bare.values()),
        exposed_wait_us=bare[TimelineState.WAIT],
        exposed_wait_for_us=_by_culprit(exposed),
        exposed_tiny_us=_length(p for p in exposed if p.size is Size.TINY and p.state is not TimelineState.WAIT),
        exposed_small_us=_length(p for p in exposed if p.size is Size.SMALL and p.state is not TimelineState.WAIT),
        exposed_tiny_wait_us=_length(p for p in exposed if p.size is Size.TINY and p.state is TimelineState.WAIT),
        exposed_copy_us=bare[TimelineState.COPY],
        exposed_move_us=bare[TimelineState.MOVE],
        wait_for_us=_by_culprit(inside),
        late_steps=_late_steps(inside, begins),
    )
    return time, _gaps(rank, inside, lived)


def _tails(lived: list[RankOperation], starts: list[int]) -> list[tuple[int, int]]:
    """The tail of each step, from the last submission to the last end, or to the next step if that begins before."""
    tails = []
    for begin, end in zip(starts, [*starts[1:], len(lived)], strict=True):
        step = lived[begin:end]
        over = max(flight.operation.end_us for flight in step)
        if end < len(lived):
            over = min(over, lived[end].submitted_us)
        tails.append((step[-1].submitted_us, over))
    return tails


def _length(parts: Iterable[TimelineSpan]) -> int:
    return sum(part.end_us - part.begin_us for part in parts)


def _by_state(parts: Sequence[TimelineSpan]) -> dict[TimelineState, int]:
    return {state: _length(part for part in parts if part.state is state) for state in TimelineState}


def _by_culprit(parts: Sequence[TimelineSpan]) -> dict[int, int]:
    found: dict[int, int] = defaultdict(int)
    for part in parts:
        if part.state is TimelineState.WAIT and part.culprit >= 0:
            found[part.culprit] += part.end_us - part.begin_us
    return dict(found)


def _late_steps(inside: list[TimelineSpan], begins: list[int]) -> dict[int, int]:
    """The number of steps in which each rank was the one most waited for, for a hundredth of the step at least."""
    found: Counter[int] = Counter()
    if len(begins) < 2:
        return {}
    parts = iter(inside)
    part = next(parts, None)
    for begin, end in pairwise(begins):
        waits: Counter[int] = Counter()
        while part is not None and part.begin_us < end:
            if part.state is TimelineState.WAIT and part.culprit >= 0 and part.begin_us >= begin:
                waits[part.culprit] += part.end_us - part.begin_us
            part = next(parts, None)
        if waits:
            culprit, us = waits.most_common(1)[0]
            if us >= 0.01 * (end - begin):
                found[culprit] += 1
    return dict(found)


def _gaps(rank: int, inside: list[TimelineSpan], lived: list[RankOperation]) -> list[Gap]:
    """The stretches with nothing in flight, and between which operations they are."""
    idle = [part for part in inside if part.state is TimelineState.IDLE]
    ends = {flight.operation.end_us: flight.operation.name for flight in lived}
    begins = {flight.submitted_us: flight.operation.name for flight in reversed(lived)}
    return [
        Gap(
            rank=rank,
            at_us=part.begin_us,
            length_us=part.end_us - part.begin_us,
            after=ends.get(part.begin_us, ""),
            before=begins.get(part.end_us, ""),
        )
        for part in idle
    ]


def _p90(values: Sequence[float]) -> float:
    return sorted(values)[int(0.9 * (len(values) - 1))] if values else 0.0


def _late(world: list[int], moved: Iterable[list[TimelineBatch]], ranks: list[RankTime]) -> list[Late]:
    by_last: dict[int, list[int]] = {rank: [] for rank in world}
    seen: set[tuple[str, int]] = set()
    known = 0
    for op in (op for one in moved for batch in one for op in batch.operations):
        if len(op.ticks) < 2 or (op.name, op.round) in seen:
            continue
        seen.add((op.name, op.round))
        known += 1
        last = last_of(op)
        by_last[last].append(op.ticks[last] - min(op.ticks.values()))
    return [
        Late(
            rank=rank,
            last=len(by_last[rank]),
            of=known,
            median_us=float(statistics.median(by_last[rank])) if by_last[rank] else 0.0,
            p90_us=_p90(by_last[rank]),
            wait_us=min((time.wait_for_us.get(rank, 0) for time in ranks if time.rank != rank), default=0),
        )
        for rank in world
    ]


def _kinds(moved: list[TimelineBatch]) -> list[KindTime]:
    groups: dict[tuple[str, str], list[TimelineBatch]] = defaultdict(list)
    for batch in moved:
        groups[batch.operations[0].kind, batch.label].append(batch)
    found = []
    for (kind, label), group in groups.items():
        sized = [batch for batch in group if batch.nbytes >= 0]
        found.append(
            KindTime(
                kind=kind,
                label=label,
                operations=sum(len(batch.operations) for batch in group),
                batches=len(group),
                nbytes=sum(batch.nbytes for batch in sized),
                move_us=sum(batch.end_us - batch.begin_us for batch in group),
                known_us=sum(batch.end_us - batch.begin_us for batch in sized),
            )
        )
    return sorted(found, key=lambda entry: -entry.move_us)


def _steady(moved: list[TimelineBatch], time: RankTime) -> list[TimelineBatch]:
    """Those of the steps that are looked at; all of them if there are no steps."""

    def is_inside(op: TimelineOperation) -> bool:
        return 0 <= op.ticks.get(time.rank, op.first_us) - time.begin_us < time.window_us

    inside = [batch for batch in moved if is_inside(batch.operations[0])]
    return inside if time.steps and inside else moved


def _fusion(moved: list[TimelineBatch], steps: int) -> Fusion:
    sizes = [batch.nbytes for batch in moved if batch.nbytes >= 0]
    tiny = [batch.end_us - batch.begin_us for batch in moved if batch.size is Size.TINY]
    return Fusion(
        operations=sum(len(batch.operations) for batch in moved),
        batches=len(moved),
        tiny=sum(size < TINY_BYTES for size in sizes),
        sized=len(sizes),
        median_bytes=float(statistics.median(sizes)) if sizes else 0.0,
        bytes=sum(sizes),
        per_step=len(moved) / max(1, steps),
        tiny_us=float(statistics.median(tiny)) if tiny else 0.0,
    )


def _tensors(moved: list[TimelineBatch]) -> list[Tensor]:
    shares: dict[tuple[str, str], list[tuple[TimelineOperation, float]]] = defaultdict(list)
    for batch in moved:
        length, total = batch.end_us - batch.begin_us, batch.nbytes
        for op in batch.operations:
            share = op.nbytes / total if total > 0 else 1 / len(batch.operations)
            shares[op.name, op.kind].append((op, length * share))
    found = [
        Tensor(
            name=name,
            kind=kind,
            count=len(times),
            nbytes=times[0][0].nbytes,
            wait_us=statistics.median(_spread(op) for op, _ in times),
            move_us=statistics.median(us for _, us in times),
            total_us=sum(us for _, us in times),
        )
        for (name, kind), times in shares.items()
    ]
    return sorted(found, key=lambda tensor: -tensor.total_us)[:_SHOWN]


def _spread(op: TimelineOperation) -> int:
    return max(op.ticks.values()) - min(op.ticks.values()) if op.ticks else op.agreed_us - op.first_us


def _unfinished(tracks: Sequence[Track]) -> list[Unfinished]:
    found: dict[tuple[str, int], Unfinished] = {}
    for track in tracks:
        for op in track.unfinished:
            arrived = sorted(op.ticks)
            found[op.name, op.round] = Unfinished(name=op.name, kind=op.kind, arrived=arrived, agreed=op.agreed_us >= 0)
    return list(found.values())
