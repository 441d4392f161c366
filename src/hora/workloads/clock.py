"""How long things take in a run: steps, the first one apart, and the recent speed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

__all__ = ["StepClock"]

_OF_LATE_S = 5.0


class StepClock:
    """
    >>> now = iter([0.0, 1.0, 3.0, 3.5, 4.0])
    >>> clock = StepClock(lambda: next(now))      # the run begins at 0
    >>> clock.start()                         # training at 1
    >>> clock.step(10), clock.step(10), clock.step(10)
    (2.0, 0.5, 0.5)
    >>> clock.first_batch_s, clock.images_per_s
    (3.0, 20.0)
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._began = self._last = now()
        self._samples = 0
        self._late_samples = self._late_s = 0.0
        self.first_batch_s = math.nan  # from the beginning to the end of the first step
        self.training_s = 0.0  # of steps, without the first
        self.before_s = 0.0  # what was spent before the run was interrupted

    @property
    def seconds(self) -> float:
        """Since the run began, interruptions left out."""
        return self._now() - self._began + self.before_s

    @property
    def images_per_s(self) -> float:
        """Images/s of all steps but the first."""
        return self._samples / self.training_s if self.training_s else 0.0

    @property
    def images_per_s_of_late(self) -> float:
        return self._late_samples / self._late_s if self._late_s else 0.0

    def start(self) -> None:
        """The next step begins now: what came before, such as a validation, is not part of it."""
        self._last = self._now()

    def step(self, samples: int) -> float:
        """A step is done; how long it took."""
        now = self._now()
        taken, self._last = now - self._last, now
        if math.isnan(self.first_batch_s):
            self.first_batch_s = now - self._began
        else:
            self.training_s += taken
            self._samples += samples
            fade = max(0.0, 1.0 - taken / _OF_LATE_S)
            self._late_samples = self._late_samples * fade + samples
            self._late_s = self._late_s * fade + taken
        return taken
