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

__all__ = ["Pool", "plain", "ratio", "with_ends"]


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

    def and_one(self, outcome: TrialOutcome) -> Pool:
        """The same with one run more."""
        return Pool([*self.outcomes, outcome])

    @property
    def state(self) -> str:
        """ "done" if any run was; otherwise how the first ended."""
        if self.good:
            return "done"
        return self.outcomes[0].state if self.outcomes else "not run"

    @cached_property
    def step_draws(self) -> Draws:
        """Draws of the median step, in seconds."""
        names = "".join(outcome.trial.name for outcome in self.good)
        return draws_of_median([outcome.step_s for outcome in self.good], seed=zlib.crc32(names.encode()))

    @cached_property
    def speed_draws(self) -> Draws:
        """Draws of the steady images/s: images of a step (of all workers, communicating or not) over it."""
        images = [outcome.images_per_s * statistics.median(outcome.step_s) for outcome in self.good]
        return _median(images) / self.step_draws

    @property
    def step_s(self) -> Estimate:
        return estimate(self.step_draws)

    @property
    def images_per_s(self) -> Estimate:
        return estimate(self.speed_draws)

    @property
    def data_s(self) -> float:
        return _median(outcome.data_s for outcome in self.good)

    @property
    def cpu_share(self) -> float:
        return _median(outcome.cpu_share for outcome in self.good)

    def facts(self) -> dict[str, Any]:
        """What goes into a row as it is."""
        speed, good = self.images_per_s, self.good
        return {
            "images_per_s": plain(speed.value),
            "low": plain(speed.low),
            "high": plain(speed.high),
            "images_per_s_study": plain(_median(outcome.images_per_s_study for outcome in good)),
            "study_steps": min((outcome.study_steps for outcome in good), default=0),  # 200, if as many were run
            "step_ms": plain(1e3 * self.step_s.value),
            "data_ms": plain(1e3 * self.data_s),
            "first_batch_s": plain(_median(outcome.first_batch_s for outcome in good)),
            "cpu_share": plain(self.cpu_share),
            "memory_mb": plain(max((outcome.memory_bytes / 2**20 for outcome in good), default=math.nan)),
            "runs": len(good),
            "state": self.state,
        }


def ratio(above: Draws, below: Draws, times: float = 1.0) -> Estimate:
    """One figure over another.

    >>> import numpy as np
    >>> ratio(np.array([2.0, 2.0]), np.array([4.0, 4.0]))
    Estimate(value=0.5, low=0.5, high=0.5)
    """
    return estimate(times * above / below) if above.size and below.size else Estimate()


def with_ends(name: str, found: Estimate) -> dict[str, float | None]:
    """A figure and its interval as fields of a row.

    >>> with_ends("gain", Estimate(0.5, 0.25, 0.75))
    {'gain': 0.5, 'gain_low': 0.25, 'gain_high': 0.75}
    """
    return {name: plain(found.value), f"{name}_low": plain(found.low), f"{name}_high": plain(found.high)}


def plain(value: float) -> float | None:
    """The value for JSON: null if it is not known.

    >>> plain(0.123456789), plain(math.nan)
    (0.123457, None)
    """
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _median(values: Iterable[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return statistics.median(known) if known else math.nan
