"""The way from ideal to measured: how the time of a step divides. One computation, for the terminal, the record and the
report; pure.

It is made of what was measured by turns in the same processes (``hora train --by-turns``): every worker by itself (the
limit), by itself but meeting the others once a step with four bytes (in step), and with Hora. A step takes, beside
what is waited for data,

    A   one worker alone, with nobody beside it       (of strong scaling: a share of the whole batch's time first)
    L   the limit                                     contention = L of the typical worker - A
    M   in step, less the bare meeting                waiting    = M - L of the typical worker
    T   with Hora                                     moving     = T - M
    data                                              what each step waits for its batch, one worker's too
    pauses                                            validation and checkpoints, spread over the steps of an epoch

A part that came out below nothing is chance, and is nothing; all of them together are the measured step, exactly.

What a record has of it. Every row of a scaling experiment with several workers has these fields (null: not measured)::

    "waterfall": [{"part": "computing", "title": "computing", "ms": 100.0, "share": 0.8}, …]
                 in order; ``part`` is one of PARTS, ``share`` is of the step with its pauses, and all known shares add
                 up to 1. Where *in step* was not measured (Keras), one part "communication" stands for "waiting" and
                 "moving". ``ms`` and ``share`` of "pauses" are null unless --pauses measured them.
    "in_step_images_per_s", "in_step_efficiency": of the third reference, beside "limit_images_per_s" and
                 "limit_efficiency"
    "above_ideal": true if the efficiency is more than ideal, which is impossible; such a figure is never in a headline
    "slower_than_one": true if all workers together are slower than one
    "link": {"mbit_per_s": 94.0, "bytes": 13.5e6, "ms": 900.0, "share": 0.91,
             "faster": [{"times": 10, "mbit_per_s": 940.0, "gain": 0.82, "speed_up": 1.3}, …]}
                 what crosses from host to host in a step; null on one host, and where it was not measured
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

__all__ = ["ABOVE", "PARTS", "Levels", "Part", "above_ideal", "lost", "parts"]

PARTS = {
    "computing": "computing, as one worker alone",
    "small batch": "a small batch computes less efficiently",
    "contention": "contention: other workers on the host",
    "waiting": "waiting in step for the slowest",
    "moving": "moving gradients",
    "communication": "waiting and moving",
    "data": "waiting for data",
    "pauses": "validation and checkpoints",
}
CROWDED = "contention: other workers and processes"  # the same part, where other processes had much of the machine
ABOVE = 0.02  # so much more than ideal may be chance; more is not believed


class Levels(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of a step, without what is waited for data. What was not measured is nan."""

    ideal: float  # of one worker alone, for as many images; in strong scaling, that part of the whole batch's time
    alone: float  # of one worker alone with the same batch
    limit: float = math.nan  # of the typical worker, by itself beside the others
    in_step: float = math.nan  # the same, meeting once a step; less the bare meeting
    job: float  # with Hora
    data: float = 0.0
    pauses: float = math.nan


class Part(msgspec.Struct, frozen=True):
    """A bar of the waterfall."""

    part: str
    title: str
    seconds: float
    share: float  # of the step, pauses included; nan if not measured


def parts(levels: Levels) -> list[Part]:
    """The step, divided.

    >>> for each in parts(Levels(ideal=0.1, alone=0.1, limit=0.12, in_step=0.15, job=0.18, data=0.02)):
    ...     print(each.part, round(each.seconds, 3), round(each.share, 2))
    computing 0.1 0.5
    contention 0.02 0.1
    waiting 0.03 0.15
    moving 0.03 0.15
    data 0.02 0.1
    pauses nan nan
    """
    named = [("small batch", levels.alone)] if levels.alone != levels.ideal else []
    if math.isfinite(levels.limit):
        named.append(("contention", levels.limit))
    if math.isfinite(levels.in_step):
        named += [("waiting", levels.in_step), ("moving", levels.job)]
    else:
        named.append(("communication", levels.job))
    typical = levels.limit if math.isfinite(levels.limit) else levels.ideal
    seconds = {
        "computing": min(levels.ideal, typical, levels.job)
    }  # if the first rank is the slow one, so is one alone
    reached = itertools.accumulate(
        (level for _, level in named), lambda at, level: min(levels.job, max(at, level)), initial=seconds["computing"]
    )
    for (name, _), (before, after) in zip(named, itertools.pairwise(reached), strict=True):
        seconds[name] = after - before
    seconds |= {"data": levels.data, "pauses": levels.pauses}
    total = sum(value for value in seconds.values() if math.isfinite(value))
    return [Part(name, PARTS[name], value, value / total) for name, value in seconds.items()]


def lost(found: Sequence[Part], *names: str) -> float:
    """The share of these parts together; what was not measured counts for nothing."""
    return sum(part.share for part in found if part.part in names and math.isfinite(part.share))


def above_ideal(value: float | None) -> bool:
    """Whether an efficiency is more than can be believed.

    >>> above_ideal(1.42), above_ideal(1.01), above_ideal(None)
    (True, False, False)
    """
    return value is not None and math.isfinite(value) and value > 1 + ABOVE


def plain(found: Sequence[Part], *, crowded: bool = False) -> list[Mapping[str, Any]]:
    """The parts as the record has them. ``crowded``: other processes used so much of the machine that the verdict
    names them."""
    return [
        {
            "part": each.part,
            "title": CROWDED if crowded and each.part == "contention" else each.title,
            "ms": round(1e3 * each.seconds, 4) if math.isfinite(each.seconds) else None,
            "share": round(each.share, 6) if math.isfinite(each.share) else None,
        }
        for each in found
    ]
