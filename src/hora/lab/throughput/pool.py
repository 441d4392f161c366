"""What several runs of the same thing come to, taken together."""

from __future__ import annotations

import math
import statistics
import zlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from hora.lab.throughput.estimate import Draws, Estimate, draws_of_median, estimate
from hora.lab.trial import TrialOutcome

__all__ = ["Pool", "plain", "ratio"]


class Pool:
    """The outcomes of a point's repeats, or of its limit's. What nothing is known of is nan.

    >>> from hora.lab.trial import Trial
    >>> run = TrialOutcome(trial=Trial(name="a", workload="mnist"), state="done", folder="", step_s=[0.1, 0.2, 0.1],
    ...               images_per_s=320.0)
    >>> pool = Pool([run, run])
    >>> pool.step_s.value, pool.images_per_s.value, pool.state
    (0.1, 320.0, 'done')
    """

    def __init__(self, outcomes: Sequence[TrialOutcome]) -> None:
        self.outcomes = list(outcomes)
        self.good = [outcome for outcome in outcomes if outcome.done and outcome.step_s]

    @property
    def state(self) -> str:
        """ "done" if any run was; otherwise how the first ended."""
        if self.good:
            return "done"
        return self.outcomes[0].state if self.outcomes else "not run"

    def best(self) -> Pool:
        """The fastest run alone: what disturbs a run from outside only ever slows it."""
        return Pool(sorted(self.good, key=lambda outcome: statistics.median(outcome.step_s))[:1])

    @cached_property
    def step_draws(self) -> Draws:
        """Of the median step, in seconds."""
        names = "".join(outcome.trial.name for outcome in self.good)
        return draws_of_median([outcome.step_s for outcome in self.good], seed=zlib.crc32(names.encode()))

    @cached_property
    def speed_draws(self) -> Draws:
        """Of the steady images/s: the images of a step (of all workers, whether they communicate or not) over it."""
        images = [outcome.images_per_s * statistics.median(outcome.step_s) for outcome in self.good]
        return _median(images) / self.step_draws

    @property
    def step_s(self) -> Estimate:
        return estimate(self.step_draws)

    @property
    def images_per_s(self) -> Estimate:
        return estimate(self.speed_draws)

    @property
    def first_batch_s(self) -> float:
        return _median(outcome.first_batch_s for outcome in self.good)

    @property
    def images_per_s_study(self) -> float:
        return _median(outcome.images_per_s_study for outcome in self.good)

    @property
    def study_steps(self) -> int:
        """How many steps the study's formula was given: fewer than 200 if fewer were run."""
        return min((outcome.study_steps for outcome in self.good), default=0)

    @property
    def data_s(self) -> float:
        return _median(outcome.data_s for outcome in self.good)

    @property
    def cpu_share(self) -> float:
        return _median(outcome.cpu_share for outcome in self.good)

    @property
    def memory_mb(self) -> float:
        return max((outcome.memory_bytes / 2**20 for outcome in self.good), default=math.nan)

    @cached_property
    def rank_step_s(self) -> dict[int, float]:
        """The median step of each rank in its fastest run, as far as they are known: of the limit all ranks', otherwise
        the first's."""
        found: dict[int, float] = {}
        for outcome in self.good:
            for rank, step_s in (outcome.rank_step_s or {0: statistics.median(outcome.step_s)}).items():
                found[rank] = min(step_s, found.get(rank, math.inf))
        return dict(sorted(found.items()))

    def facts(self) -> dict[str, Any]:
        """What goes into a row as it is."""
        speed = self.images_per_s
        return {
            "images_per_s": plain(speed.value),
            "low": plain(speed.low),
            "high": plain(speed.high),
            "images_per_s_study": plain(self.images_per_s_study),
            "study_steps": self.study_steps,
            "step_ms": plain(1e3 * self.step_s.value),
            "data_ms": plain(1e3 * self.data_s),
            "first_batch_s": plain(self.first_batch_s),
            "cpu_share": plain(self.cpu_share),
            "memory_mb": plain(self.memory_mb),
            "runs": len(self.good),
            "state": self.state,
        }


def ratio(above: Draws, below: Draws, times: float = 1.0) -> Estimate:
    """One figure over another.

    >>> import numpy as np
    >>> ratio(np.array([2.0, 2.0]), np.array([4.0, 4.0]))
    Estimate(value=0.5, low=0.5, high=0.5)
    """
    return estimate(times * above / below) if above.size and below.size else Estimate()


def plain(value: float) -> float | None:
    """As JSON has it: null if it is not known.

    >>> plain(0.123456789), plain(math.nan)
    (0.123457, None)
    """
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _median(values: Iterable[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return statistics.median(known) if known else math.nan
