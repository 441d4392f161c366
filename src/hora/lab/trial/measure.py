"""The speed of a run, from its lines about steps.

The first steps are left out of what is called steady: five or a tenth, whichever is more, but never more than half.
The speed is that of the median step, which a few slow steps (a checkpoint, another process) do not change. The interval
is where the median of such steps lies with 90 %, from their order alone: it supposes nothing about how they are spread,
only that they do not depend on one another.
"""

from __future__ import annotations

import math
import socket
import statistics
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from hora.errors import BadData
from hora.workloads import folder as run_folder

__all__ = ["STUDY_STEPS", "RunSpeed", "first_batch_s", "interval", "speed", "training_time", "warmup"]

STUDY_STEPS = 200  # the reference study's images/s is over that many, the first included
_CONFIDENCE = 0.90


class RunSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """How fast a run was, as far as its lines tell."""

    step_s: list[float] = []  # steady ones
    warmup_steps: int = 0
    median_s: float = math.nan
    images_per_s: float = math.nan
    low: float = math.nan
    high: float = math.nan
    study: float = math.nan
    study_steps: int = 0
    data_s: float = math.nan


def speed(steps: Sequence[Mapping[str, Any]]) -> RunSpeed:
    """The speed of a run from its lines about steps.

    >>> lines = [{"step": n, "samples": 64 * n, "images_per_s": 64.0 if n == 1 else 640.0, "data_s": 0.01}
    ...          for n in range(1, 21)]
    >>> found = speed(lines)
    >>> found.warmup_steps, len(found.step_s), found.images_per_s, round(found.study, 1)
    (5, 15, 640.0, 441.4)
    """
    taken: list[tuple[int, float, float]] = []  # samples, seconds, seconds of waiting for data
    before: int | None = None
    for facts in steps:
        if not all(facts.get(name) is not None for name in ("step", "samples", "images_per_s", "data_s")):
            continue
        if facts["step"] == 1:
            before = 0
        if before is not None and facts["images_per_s"] > 0:  # unknown if the run was resumed
            samples = facts["samples"] - before
            taken.append((samples, samples / facts["images_per_s"], facts["data_s"]))
        before = facts["samples"]
    if not taken:
        return RunSpeed()
    batch = max(samples for samples, _, _ in taken)
    whole = [(seconds, waited) for samples, seconds, waited in taken if samples == batch]
    left_out = warmup(len(whole))
    step_s = [seconds for seconds, _ in whole[left_out:]]
    fastest, slowest = interval(step_s)
    median_s = statistics.median(step_s)
    first = taken[:STUDY_STEPS]
    return RunSpeed(
        step_s=step_s,
        warmup_steps=left_out,
        median_s=median_s,
        images_per_s=batch / median_s,
        low=batch / slowest,
        high=batch / fastest,
        study=sum(samples for samples, _, _ in first) / sum(seconds for _, seconds, _ in first),
        study_steps=len(first),
        data_s=statistics.median(waited for _, waited in whole[left_out:]),
    )


def warmup(steps: int) -> int:
    """How many of the first steps are left out.

    >>> [warmup(steps) for steps in (1, 6, 20, 200)]
    [0, 3, 5, 20]
    """
    return min(max(5, steps // 10), steps // 2)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Two of the values between which their true median lies with 90 % or more; the outermost if they are too few.

    >>> interval([float(value) for value in range(1, 101)])
    (42.0, 59.0)
    >>> interval([3.0, 1.0, 2.0])
    (1.0, 3.0)
    """
    ordered, count = sorted(values), len(values)
    tail, rank = 0.0, 0  # P(no more than `rank` of the values are below the median)
    while rank < count // 2:
        ways = math.lgamma(count + 1) - math.lgamma(rank + 1) - math.lgamma(count - rank + 1)
        tail += math.exp(ways - count * math.log(2))
        if tail > (1 - _CONFIDENCE) / 2:
            break
        rank += 1
    rank = max(0, rank - 1)
    return ordered[rank], ordered[count - 1 - rank]


def first_batch_s(folder: Path, started: float) -> float:
    """Seconds from the start of the child (as ``time.time()`` counts) to the end of the run's first step: imports, data
    and the first compilation are in it. On another host, whose clock may be another, it is what the run itself says."""
    try:
        file = run_folder.read(folder)
    except BadData:
        return math.nan
    if file.first_step and file.host.get("hostname") == socket.gethostname():
        return max(0.0, _seconds(file.first_step) - started)
    said = file.result.get("first_batch_s")
    return float(said) if isinstance(said, int | float) else math.nan


def training_time(folder: Path) -> tuple[float, float]:
    """When the steps after the first one began and ended, as ``time.time()`` counts; unbounded if unknown."""
    try:
        file = run_folder.read(folder)
    except BadData:
        return -math.inf, math.inf
    return _seconds(file.first_step or file.started), _seconds(file.ended) if file.ended else math.inf


def _seconds(iso: str) -> float:
    return datetime.fromisoformat(iso).timestamp()
