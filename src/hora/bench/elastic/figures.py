"""Figures of what was written down: pure functions of events."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Sequence

from hora.bench.elastic.job import Event

__all__ = ["costs", "goodput", "joins", "lost_steps", "recoveries", "standard_error", "step_s"]


def recoveries(events: Sequence[Event]) -> list[float]:
    """Seconds from each kill to the first step that others finished in a later generation.

    >>> events = [Event(0.0, "step", 1, 2, 7, 1), Event(0.5, "kill", 1, 2, 8), Event(0.6, "step", 1, 2, 7, 2),
    ...           Event(0.75, "step", 2, 1, 7, 3)]
    >>> recoveries(events)
    [0.25]
    """
    found = []
    for number, kill in enumerate(events):
        if kill.kind == "kill":
            later = (e for e in events[number:] if e.kind == "step" and e.pid != kill.pid)
            after = next((e for e in later if e.generation > kill.generation), None)
            if after is not None:
                found.append(after.at - kill.at)
    return found


def step_s(events: Sequence[Event]) -> float:
    """A worker's undisturbed step: the median of those within a generation."""
    return statistics.median(
        [b.at - a.at for a, b in _pairs(events) if a.generation == b.generation and a.size == b.size] or [0.0]
    )


def joins(events: Sequence[Event]) -> list[float]:
    """What those who trained waited for each newcomer: the step over which it joined, beyond an undisturbed one.

    >>> steps = [(0.0, 1, 1), (0.1, 1, 1), (0.2, 1, 1), (0.5, 2, 2)]
    >>> [round(s, 3) for s in joins([Event(at, "step", g, size, 7, 1) for at, g, size in steps])]
    [0.2]
    """
    usual = step_s(events)
    longest: dict[int, float] = defaultdict(float)
    for a, b in _pairs(events):
        if b.generation > a.generation and b.size > a.size:
            longest[b.generation] = max(longest[b.generation], b.at - a.at - usual)
    return [max(0.0, wait) for wait in longest.values()]


def lost_steps(events: Sequence[Event]) -> int:
    """Committed steps that had to be taken again.

    >>> lost_steps([Event(0, "step", 1, 2, 7, 5), Event(1, "kill", 1, 2, 8), Event(2, "step", 2, 1, 7, 4)])
    2
    """
    lost, last = 0, 0
    generation = 0
    for event in events:
        if event.kind != "step":
            continue
        if event.generation > generation:
            lost += max(0, last - (event.step - 1)) if generation else 0
            generation = event.generation
        last = max(last, event.step)
    return lost


def goodput(events: Sequence[Event]) -> float:
    """What share of the live workers' time went into steps that count. A worker is live from when it is ready to train
    until it is killed; a step counts once, with the undisturbed time of all who took it.

    >>> steps = [Event(n / 10, "step", 1, 1, 7, n) for n in range(1, 11)]
    >>> round(goodput([Event(0.0, "ready", 0, 0, 7), *steps]), 3)
    1.0
    """
    ends = {e.pid: e.at for e in events if e.kind == "kill"}
    steps = [e for e in events if e.kind == "step"]
    last = max((e.at for e in steps), default=0.0)
    live = sum(max(0.0, ends.get(e.pid, last) - e.at) for e in events if e.kind == "ready")
    finished = {e.step: e.size for e in steps}  # one that was taken again counts once
    return sum(finished.values()) * step_s(events) / live if live else 0.0


def costs(events: Sequence[Event], variant: int) -> list[float]:
    """Percent that a step of this variant took longer than one of the first, in each round of each worker.

    >>> [round(c, 6) for c in costs([Event(0, "cost", 0, 1, 7, 200), Event(0, "cost", 1, 1, 7, 202)], 1)]
    [1.0]
    """
    took = {(e.pid, e.size, e.generation): e.step for e in events if e.kind == "cost"}
    pairs = [(took.get((pid, number, variant)), ns) for (pid, number, which), ns in took.items() if which == 0]
    return [100 * (ns / plain - 1) for ns, plain in pairs if ns]


def standard_error(values: Sequence[float]) -> float:
    """Of the median, estimated by the quartiles, which a few disturbed rounds do not change.

    >>> round(standard_error(list(range(101))), 2)
    4.72
    """
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4)
    return float(0.93 * (high - low) / len(values) ** 0.5)


def _pairs(events: Sequence[Event]) -> list[tuple[Event, Event]]:
    """Steps that a worker finished one after the other."""
    mine: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event.kind == "step":
            mine[event.pid].append(event)
    return [pair for steps in mine.values() for pair in itertools.pairwise(steps)]
