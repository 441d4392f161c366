"""A trial by turns, taken apart: the same run as one that was alone, in step, or together all the time."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any

import msgspec

from hora.lab.trial.measure import interval

if TYPE_CHECKING:
    from hora.lab.trial import TrialOutcome

__all__ = ["meeting_s", "of", "take"]


def of(outcome: TrialOutcome, mode: str) -> TrialOutcome:
    """What the run would have been in that mode; one that was not done stays as it is."""
    made = msgspec.structs.replace(outcome)
    take(made, mode)
    return made


def take(outcome: TrialOutcome, mode: str) -> None:
    """Make its figures those of one mode (``hora.workloads.turns.MODES``); none if it did not get to the end."""
    found: dict[str, Any] = outcome.result.get("by_turns") or {}
    ranks: list[list[float]] = found.get(mode) or [[]]
    outcome.step_s, outcome.warmup_steps = ranks[0], 0
    outcome.rank_step_s = {rank: statistics.median(steps) for rank, steps in enumerate(ranks) if steps}
    outcome.images_per_s = outcome.images_per_s_low = outcome.images_per_s_high = math.nan
    outcome.images_per_s_study, outcome.study_steps = math.nan, 0  # which has the very first steps in it
    if not ranks[0]:
        return
    outcome.data_s = found["data"][mode][0]
    images = outcome.result["global_batch"]
    parts = ranks if mode == "limit" else ranks[:1]  # each at its own pace, or all at one
    fastest, slowest = zip(*(interval(steps) for steps in parts), strict=True)
    outcome.images_per_s = sum(images / len(parts) / statistics.median(steps) for steps in parts)
    outcome.images_per_s_low = sum(images / len(parts) / seconds for seconds in slowest)
    outcome.images_per_s_high = sum(images / len(parts) / seconds for seconds in fastest)


def meeting_s(outcome: TrialOutcome) -> float:
    """What the bare meeting of all workers takes, when none is late; nan if it was not measured."""
    return float((outcome.result.get("by_turns") or {}).get("meeting", math.nan))
