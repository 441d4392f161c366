"""Outcomes as trials leave them, made up."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from hora.lab.trial import Trial, TrialOutcome

__all__ = ["outcome"]


def outcome(step_s: Sequence[float], *, workers: int = 1, batch: int = 32, **more: Any) -> TrialOutcome:
    """A run that was done, of these steady steps; ``ranks`` are medians of other ranks of an independent run."""
    ranks: dict[int, float] = {0: statistics.median(step_s), **more.pop("ranks", {})}
    independent = len(ranks) > 1
    trial = Trial(
        name=f"{workers}w-{batch}-{more.pop('turn', 0)}-{independent}",
        workload="synthetic",
        workers=workers,
        options={"batch": batch},
        independent=independent,
    )
    images = sum(batch / step for step in ranks.values()) if independent else workers * batch / ranks[0]
    facts = {"first_batch_s": 2.0, "data_s": 0.0, "cpu_share": 0.5, "memory_bytes": 10**8, "study_steps": 20}
    return TrialOutcome(
        trial=trial,
        state="done",
        folder="nowhere",
        step_s=list(step_s),
        rank_step_s=ranks if independent else {0: ranks[0]},
        images_per_s=images,
        images_per_s_study=images / 2,
        **{**facts, **more},
    )
