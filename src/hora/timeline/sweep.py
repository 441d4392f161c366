"""One rank's time, instant by instant: is data moving, being copied, queueing, waiting for another rank, or is nothing
in flight?

Operations overlap, so their times cannot be added up. Here every instant is counted once, under the best that goes on
in it: moving before copying before queueing before waiting. An instant of waiting is put down to the rank that arrives
last at the operation that has waited longest; or that begins last to move it, which can be told from all ranks' files.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from hora.timeline.read import Activity, TimelineOperation, Track

__all__ = [
    "RankOperation",
    "Size",
    "TimelineBatch",
    "TimelineSpan",
    "TimelineState",
    "batches",
    "clip",
    "flights",
    "last_of",
    "state_of",
    "sweep",
]

TINY_BYTES = 64 << 10
SMALL_BYTES = 1 << 20
_WAITS = ("QUEUE", "WAIT_FOR_DATA", "WAIT_FOR_OTHER_TENSOR_DATA")


class TimelineState(enum.IntEnum):
    """What goes on in an instant, the best first."""

    MOVE = 0  # data moves
    COPY = 1  # into or out of buffers, or these are set up
    QUEUE = 2  # agreed on; its turn or its data has not come
    WAIT = 3  # for another rank
    IDLE = 4  # nothing in flight


class Size(enum.IntEnum):
    """How much a batch moves: a tiny one costs what an empty one does, and of a small one bytes are not the most."""

    TINY = 0
    SMALL = 1
    LARGE = 2  # or not known


class TimelineSpan(NamedTuple):
    """A stretch of time in one state; ``culprit`` is the rank waited for, ``size`` of the largest that is in it."""

    begin_us: int
    end_us: int
    state: TimelineState
    culprit: int = -1
    size: Size = Size.LARGE


class TimelineBatch(NamedTuple):
    """Operations that moved together."""

    begin_us: int
    end_us: int
    operations: tuple[TimelineOperation, ...]
    label: str

    @property
    def nbytes(self) -> int:
        """Of all of them; -1 if one is unknown."""
        sizes = [operation.nbytes for operation in self.operations]
        return -1 if min(sizes) < 0 else sum(sizes)

    @property
    def size(self) -> Size:
        if not 0 <= self.nbytes < SMALL_BYTES:
            return Size.LARGE
        return Size.TINY if self.nbytes < TINY_BYTES else Size.SMALL


class RankOperation(NamedTuple):
    """An operation as one rank lived through it."""

    operation: TimelineOperation
    submitted_us: int
    last: int  # the rank that came last, -1 if that is not known or it was this one
    size: Size = Size.LARGE


def state_of(label: str) -> TimelineState:
    """
    >>> [state_of(label).name for label in ("QUEUE", "MEMCPY_IN_FUSION_BUFFER", "INIT_NCCL", "NCCL_ALLREDUCE")]
    ['QUEUE', 'COPY', 'COPY', 'MOVE']
    """
    if label in _WAITS:
        return TimelineState.QUEUE
    return TimelineState.COPY if label.startswith(("MEMCPY_", "COPY_", "INIT_", "ALLOCATE_")) else TimelineState.MOVE


def _movement(operation: TimelineOperation) -> Activity:
    """From the first to the last movement; a tiny operation's data may have travelled with the arrivals."""
    moves = [activity for activity in operation.activities if state_of(activity.label) is TimelineState.MOVE]
    if moves:
        end = max(move.end_us for move in moves)
        begin = min(max(moves[0].begin_us, operation.begun_us), end)
        return Activity(
            moves[0].label, begin, max(begin, min(end, operation.over_us)) if operation.over_us >= 0 else end
        )
    return Activity("", operation.agreed_us, operation.end_us)


def batches(operations: Iterable[TimelineOperation]) -> list[TimelineBatch]:
    """What moved together: Hora says how many there were; Horovod's begin before the first of them ends.

    >>> def moved(name, begin, end, fused):
    ...     return TimelineOperation(name, "ALLREDUCE", 0, {}, 0, end, [Activity("SHM_ALLREDUCE", begin, end)], fused,
    ...     nbytes=8)
    >>> [len(b.operations) for b in batches([moved("a", 1, 9, 2), moved("b", 1, 9, 2), moved("c", 9, 12, 1)])]
    [2, 1]
    """
    found: list[TimelineBatch] = []
    group: list[tuple[Activity, TimelineOperation]] = []

    def close() -> None:
        if group:
            begin, end = min(m.begin_us for m, _ in group), max(m.end_us for m, _ in group)
            found.append(TimelineBatch(begin, end, tuple(op for _, op in group), group[0][0].label))
            group.clear()

    moves = [(_movement(op), op) for op in operations]
    for move, op in sorted(moves, key=lambda pair: pair[0].begin_us):
        if group:
            first, of = group[0]
            alike = first.label == move.label != "" and of.fused == op.fused and op.fused != 1
            if not alike or len(group) == op.fused or move.begin_us > min(m.end_us for m, _ in group):
                close()
        group.append((move, op))
    close()
    return found


def last_of(op: TimelineOperation) -> int:
    """The rank that arrived last; -1 if fewer than two arrivals are known. Remembered, as many ranks ask.

    >>> last_of(TimelineOperation("a", "BARRIER", 5, {0: 5, 1: 7, 2: 6}))
    1
    """
    if op.last == -2:
        latest = max(op.ticks.values(), default=0)
        op.last = max(rank for rank, tick in op.ticks.items() if tick == latest) if len(op.ticks) > 1 else -1
    return op.last


def flights(track: Track, rank: int, sizes: Mapping[int, Size]) -> list[RankOperation]:
    """A rank's operations in order of submission: of its own file, or of another's that knows when it arrived.

    ``sizes`` are those of the operations' batches, by the operation's ``id``.

    >>> op = TimelineOperation("a", "BARRIER", 5, {0: 5, 1: 7}, 7, 9)
    >>> [flights(Track("", 0, "Hora", operations=[op]), rank, {})[0][1:3] for rank in (0, 1)]
    [(5, 1), (7, -1)]
    """
    found = []
    for op in track.operations:
        if rank == track.rank:
            submitted = op.ticks.get(rank, op.first_us)
        elif rank in op.ticks:
            submitted = op.ticks[rank]
        else:
            continue
        last = last_of(op)
        size = sizes.get(id(op), Size.LARGE)
        found.append(RankOperation(op, min(submitted, op.agreed_us), -1 if last == rank else last, size))
    return sorted(found, key=lambda flight: flight.submitted_us)


def _phases(flight: RankOperation) -> list[tuple[TimelineState, int, int, int]]:
    """What the operation went through: state, from, to, and for whom it waited."""
    op = flight.operation
    inside = []
    for activity in op.activities:
        state, begin, end = state_of(activity.label), activity.begin_us, activity.end_us
        if state is TimelineState.MOVE and op.begun_us > begin:
            inside.append((TimelineState.WAIT, begin, min(op.begun_us, end), op.begun_by))
            begin = min(op.begun_us, end)
        inside.append((state, begin, end, -1))
    moves = any(state is TimelineState.MOVE for state, *_ in inside)
    if not moves:  # no movement is recorded: all of it is
        inside = [phase for phase in inside if phase[0] is TimelineState.COPY]
    # Where nothing is recorded between agreement and end, it queues.
    rest = [(TimelineState.MOVE, op.agreed_us, op.end_us, -1)] if not moves else _between(op, inside)
    return [(TimelineState.WAIT, flight.submitted_us, op.agreed_us, flight.last), *rest, *inside]


def _between(
    op: TimelineOperation, inside: list[tuple[TimelineState, int, int, int]]
) -> list[tuple[TimelineState, int, int, int]]:
    holes, at = [], op.agreed_us
    for _, begin, end, _ in sorted(inside, key=lambda phase: phase[1]):
        if begin > at:
            holes.append((TimelineState.QUEUE, at, begin, -1))
        at = max(at, end)
    return [*holes, (TimelineState.QUEUE, at, op.end_us, -1)]


def sweep(lived: Sequence[RankOperation]) -> list[TimelineSpan]:
    """From the first submission to the last end, every instant once.

    >>> op = TimelineOperation("a", "ALLREDUCE", 0, {0: 0, 1: 40}, 40, 100, [Activity("SHM_ALLREDUCE", 60, 100)])
    >>> for part in sweep([RankOperation(op, 0, 1)]): print(part.begin_us, part.end_us, part.state.name, part.culprit)
    0 40 WAIT 1
    40 60 QUEUE -1
    60 100 MOVE -1
    """
    events = []
    for number, flight in enumerate(lived):
        for state, begin, end, culprit in _phases(flight):
            if end > begin:
                events += [(begin, 1, state, number, culprit), (end, -1, state, number, culprit)]
    events.sort(key=lambda event: event[0])
    counts = [[0] * len(Size) for _ in range(TimelineState.IDLE)]  # phases that are open, by state and size
    waiting: dict[tuple[int, int], int] = {}
    segments: list[TimelineSpan] = []
    before = events[0][0] if events else 0
    for at, step, state, number, whom in events:
        if at > before:
            now = next((s for s in TimelineState if s is not TimelineState.IDLE and any(counts[s])), TimelineState.IDLE)
            size = max((s for s in Size if now is TimelineState.IDLE or counts[now][s]), default=Size.LARGE)
            culprit = next(iter(waiting))[1] if now is TimelineState.WAIT else -1
            segment = TimelineSpan(before, at, now, culprit, size)
            last = segments[-1] if segments else None
            if last is not None and last[2:] == segment[2:]:
                segments[-1] = last._replace(end_us=at)
            else:
                segments.append(segment)
            before = at
        counts[state][lived[number].size] += step
        if state is TimelineState.WAIT and step > 0:
            waiting[number, whom] = waiting.get((number, whom), 0) + 1
        elif state is TimelineState.WAIT:
            waiting[number, whom] -= 1
            if not waiting[number, whom]:
                del waiting[number, whom]
    return segments


def clip(segments: Sequence[TimelineSpan], intervals: Sequence[tuple[int, int]]) -> list[TimelineSpan]:
    """The parts of the segments that lie in the intervals; both are in order, and the intervals are apart.

    >>> clip([TimelineSpan(0, 10, TimelineState.MOVE), TimelineSpan(10, 30, TimelineState.IDLE)], [(5, 12), (20,
    ...     99)])[1].end_us
    12
    """
    parts, i = [], 0
    for begin, end in intervals:
        while i < len(segments) and segments[i].end_us <= begin:
            i += 1
        j = i
        while j < len(segments) and segments[j].begin_us < end:
            part = segments[j]._replace(begin_us=max(begin, segments[j].begin_us), end_us=min(end, segments[j].end_us))
            if part.end_us > part.begin_us:
                parts.append(part)
            j += 1
    return parts
