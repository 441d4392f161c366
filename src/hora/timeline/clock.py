"""One clock for all ranks: what to add to each file's times, and how wrong that can be.

Every file counts from its own start. Three things tie two files together, the best that is there is used:

*Arrivals.* Workers that agree in shared memory see each other's arrivals on the host's one clock, and each of them
writes all of them down. The same arrival in two files is the same moment: the offset is known to the microsecond.

*Ends.* Nobody can have the result of an allreduce, allgather, reducescatter or barrier before the last worker has
begun it. So in true time every end comes after every begin, on whichever rank: each such operation bounds the offset
from both sides, and all of them together leave an interval. Inside it the offset is taken that makes ends coincide in
the median. The error is at most the distance to the farther edge. Clocks of two hosts also drift apart, by some ten
microseconds a second; if one offset cannot fit all operations, a straight line is fitted, and the error is that
beside the line.

*Wall clocks*, where the files share no operation: as good as the hosts' time service, which is not known here.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from hora.timeline.read import TimelineOperation, Track

__all__ = ["ClockCorrection", "align", "put_together"]

_TOGETHER = ("ALLREDUCE", "ADASUM", "ALLGATHER", "REDUCESCATTER", "BARRIER")
_SAME_US = 5.0  # two recordings of one arrival differ by rounding, no more
_HEARD_US = 20  # no message to the hub and back is as fast
_NOTED_US = 5  # and writing down that one heard of it takes this long at most, for each operation
_WINDOWS = 8


class ClockCorrection(NamedTuple):
    """How one rank's times become the common ones: ``t + offset_us + drift * t``."""

    rank: int
    how: str  # "reference", "arrivals", "ends", "wall clocks" or "nothing"
    offset_us: float = 0.0
    drift: float = 0.0
    error_us: float | None = 0.0  # None: not known
    shift: int = 0  # it began to record that many rounds later

    def at(self, us: int) -> int:
        """A time of this rank on the common clock.

        >>> ClockCorrection(1, "ends", offset_us=250.0, drift=1e-5).at(1_000_000)
        1000260
        """
        return round(us + self.offset_us + self.drift * us)


def align(tracks: Sequence[Track]) -> list[ClockCorrection]:
    """A clock for each track; the first one's is the reference.

    >>> def track(rank, shift):
    ...     return Track("", rank, "Hora", operations=[
    ...         TimelineOperation("a", "ALLREDUCE", 10 - shift, {0: 10 - shift, 1: 90 - shift}, 90 - shift,
    ...     120 - shift)])
    >>> align([track(0, 0), track(1, 7)])[1]
    ClockCorrection(rank=1, how='arrivals', offset_us=7.0, drift=0.0, error_us=1.0, shift=0)
    """
    first = tracks[0]
    return [ClockCorrection(first.rank, "reference"), *(_between(first, other) for other in tracks[1:])]


def put_together(tracks: Sequence[Track]) -> list[ClockCorrection]:
    """Rewrite the tracks' times to one clock, on which the first thing happens at 0, and let them share arrivals.

    >>> one = Track("", 0, "Hora", operations=[TimelineOperation("a", "BARRIER", 500, {0: 500}, 900, 1200)])
    >>> two = Track("", 1, "Hora", operations=[TimelineOperation("a", "BARRIER", 800, {1: 800}, 900, 1200)])
    >>> [clock.offset_us for clock in put_together([one, two])]
    [-500.0, -500.0]
    >>> one.operations[0].ticks == two.operations[0].ticks == {0: 0, 1: 300}
    True
    """
    _forget_unknown_arrivals(tracks)
    clocks = align(tracks)
    times = [clock.at(op.first_us) for track, clock in zip(tracks, clocks, strict=True) for op in track.everything]
    start = min(times, default=0)
    clocks = [clock._replace(offset_us=clock.offset_us - start) for clock in clocks]
    for track, clock in zip(tracks, clocks, strict=True):
        _apply(track, clock)
    if len(tracks) > 1:
        _share_arrivals(tracks)
        _share_begins(tracks)
    return clocks


def _forget_unknown_arrivals(tracks: Sequence[Track]) -> None:
    """Workers that agree by messages may note as arrival when they heard of the agreement; that says nothing."""
    if not any(_knows_arrivals(track) for track in tracks):
        for track in tracks:
            for operation in track.operations:
                operation.ticks = {}


def _knows_arrivals(track: Track) -> bool:
    """Whether it has others' arrivals, or its own apart from agreement: of what was agreed on at once, several."""
    if any(op.ticks.keys() - {track.rank} for op in track.operations):
        return True
    agreed: dict[int, list[int]] = {}
    for op in track.operations:
        agreed.setdefault(op.agreed_us, []).append(op.first_us)
    if any(len(set(firsts)) > 1 for firsts in agreed.values()):
        return True
    waits = [at - firsts[0] - _NOTED_US * len(firsts) for at, firsts in agreed.items()]
    return bool(waits) and statistics.median(waits) >= _HEARD_US


def _apply(track: Track, clock: ClockCorrection) -> None:
    for operation in track.everything:
        operation.round += clock.shift
        operation.first_us = clock.at(operation.first_us)
        operation.ticks = {rank: clock.at(tick) for rank, tick in operation.ticks.items()}
        operation.agreed_us = clock.at(operation.agreed_us) if operation.agreed_us >= 0 else -1
        operation.end_us = clock.at(operation.end_us) if operation.end_us >= 0 else -1
        for activity in operation.activities:
            activity.begin_us, activity.end_us = clock.at(activity.begin_us), clock.at(activity.end_us)


def _share_arrivals(tracks: Sequence[Track]) -> None:
    """What one file says about a rank's arrival holds for all; a rank's own word counts most."""
    known: dict[tuple[str, int], dict[int, int]] = {}
    for track in tracks:
        for op in track.everything:
            said = known.setdefault((op.name, op.round), {})
            for rank, tick in op.ticks.items():
                if rank == track.rank or rank not in said:
                    said[rank] = tick
    for track in tracks:
        for op in track.everything:
            op.ticks = known[op.name, op.round]


def _share_begins(tracks: Sequence[Track]) -> None:
    """Data moves when the last rank has begun to; before that, the others stand in it and wait.

    It has moved when the first rank has the result; of gradients in shared memory others may notice much later.
    """
    begins: dict[tuple[str, int], tuple[int, int]] = {}
    overs: dict[tuple[str, int], int] = {}
    for track in tracks:
        for op in track.operations:
            if op.kind in _TOGETHER and any(activity.label != "QUEUE" for activity in op.activities):
                key = op.name, op.round
                begins[key] = max(begins.get(key, (-1, -1)), (_begun(op), track.rank))
                overs[key] = min(overs.get(key, op.end_us), op.end_us)
    for track in tracks:
        for op in track.operations:
            op.begun_us, op.begun_by = begins.get((op.name, op.round), (-1, -1))
            op.over_us = overs.get((op.name, op.round), -1)


_Pairs = list[tuple[TimelineOperation, TimelineOperation]]


def _between(one: Track, other: Track) -> ClockCorrection:
    wall = other.epoch_us - one.epoch_us if one.epoch_us is not None and other.epoch_us is not None else None
    best: ClockCorrection | None = None
    for shift in _shifts(one, other):
        pairs = _pairs(one, other, shift)
        clock = _by_arrivals(other.rank, pairs)
        if clock is not None:
            return clock._replace(shift=shift)
        clock = _by_ends(other.rank, pairs)
        if clock is not None and (best is None or _doubt(clock, wall) < _doubt(best, wall)):
            best = clock._replace(shift=shift)
    if best is not None:
        return best
    if wall is not None:
        return ClockCorrection(other.rank, "wall clocks", float(wall), error_us=None)
    return ClockCorrection(other.rank, "nothing", error_us=None)


def _shifts(one: Track, other: Track) -> list[int]:
    """The possible numbers of rounds by which the files differ: none, or those that one lacks, if it started later."""
    mine, theirs = (Counter(op.name for op in track.operations) for track in (one, other))
    missing = Counter(mine[name] - theirs[name] for name in mine.keys() & theirs.keys())
    usual = missing.most_common(1)[0][0] if missing else 0
    return [0, usual] if usual else [0]


def _doubt(clock: ClockCorrection, wall: int | None) -> float:
    """Rounds look alike: of shifts that both fit, the one that the wall clocks are nearer to."""
    contradicts = 1e15 if clock.error_us is None else 0.0
    return contradicts + (abs(clock.offset_us - wall) if wall is not None else 0.0)


def _pairs(one: Track, other: Track, shift: int) -> _Pairs:
    there = {(op.name, op.round + shift): op for op in other.operations}
    return [(op, there[op.name, op.round]) for op in one.operations if (op.name, op.round) in there]


def _by_arrivals(rank: int, pairs: _Pairs) -> ClockCorrection | None:
    """The offset from arrivals that both recorded; a file may have moved some of them to keep its slices nested."""
    seen = [a.ticks[r] - b.ticks[r] for a, b in pairs if len(a.ticks) > 1 for r in a.ticks.keys() & b.ticks.keys()]
    if not seen:
        return None
    offset = statistics.median(seen)
    near = sum(abs(difference - offset) <= _SAME_US for difference in seen)
    if near < 0.5 * len(seen) or (near < 2 and len(seen) > 2):
        return None
    return ClockCorrection(rank, "arrivals", float(offset), error_us=1.0)


class _Bounds(NamedTuple):
    at_us: float  # on the other's clock
    low: float
    high: float
    ends: float


def _by_ends(rank: int, pairs: _Pairs) -> ClockCorrection | None:
    bounds = [_bounds(a, b) for a, b in pairs if a.kind in _TOGETHER and not (a.failed or b.failed)]
    if not bounds:
        return None
    low, high = max(bound.low for bound in bounds), min(bound.high for bound in bounds)
    if low <= high:
        offset = float(min(max(statistics.median(bound.ends for bound in bounds), low), high))
        return ClockCorrection(rank, "ends", offset, error_us=max(high - offset, offset - low))
    return _drifting(rank, bounds)


def _bounds(a: TimelineOperation, b: TimelineOperation) -> _Bounds:
    """Bounds of what is added to b's times: a ends after b began, and b after a."""
    return _Bounds(float(b.end_us), _begun(a) - b.end_us, a.end_us - _begun(b), a.end_us - b.end_us)


def _begun(operation: TimelineOperation) -> int:
    moves = [activity.begin_us for activity in operation.activities if activity.label != "QUEUE"]
    return min(moves) if moves else operation.agreed_us


def _drifting(rank: int, bounds: list[_Bounds]) -> ClockCorrection:
    """A line through what fits in each of some windows of time; the error is what it still violates, or the room."""
    bounds = sorted(bounds)
    size = max(1, len(bounds) // _WINDOWS)
    points = []
    for start in range(0, len(bounds), size):
        window = bounds[start : start + size]
        low, high = max(b.low for b in window), min(b.high for b in window)
        middle = statistics.median(b.ends for b in window)
        points.append(
            (statistics.median(b.at_us for b in window), min(max(middle, low), high) if low <= high else middle)
        )
    slopes = [
        (y2 - y1) / (x2 - x1) for i, (x1, y1) in enumerate(points) for x2, y2 in points[i + 1 :] if x2 > x1
    ]  # fmt: skip
    drift = statistics.median(slopes) if slopes else 0.0
    offset = statistics.median(y - drift * x for x, y in points)
    low = max(b.low - drift * b.at_us for b in bounds)
    high = min(b.high - drift * b.at_us for b in bounds)
    if low > high:  # no line fits all; not one run, or a clock that was set while it ran
        return ClockCorrection(rank, "ends", offset, drift, None)
    offset = min(max(offset, low), high)
    return ClockCorrection(rank, "ends", offset, drift, max(high - offset, offset - low))
