"""Says how starting a job proceeds: at once with --verbose, else only when it takes long."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["StartStages"]

_LONG_S = 4.0


class StartStages:
    """The lines of one start. ``say`` gets them as they come; ``announce`` only once the start has taken long.

    >>> stages = StartStages(say=lambda line: None, announce=print, long_s=0.0)
    >>> stages.tell("starting agents on h1, h2 by ssh")
    >>> stages.step()
    starting agents on h1, h2 by ssh
    """

    def __init__(self, say: Callable[[str], None], announce: Callable[[str], None], *, long_s: float = _LONG_S) -> None:
        self._say, self._announce = say, announce
        self._long_at: float | None = time.monotonic() + long_s  # None: it did not take long
        self._untold: list[str] = []

    def tell(self, line: str) -> None:
        self._say(line)
        self._untold.append(line)

    def step(self) -> None:
        """Call this now and then."""
        if self._untold and self._long_at is not None and time.monotonic() >= self._long_at:
            for line in self._untold:
                self._announce(line)
            self._untold.clear()

    def settle(self) -> None:
        """The start is over. If it was quick, its lines are of no interest, nor is what follows."""
        if self._long_at is not None and time.monotonic() < self._long_at:
            self._long_at = None
