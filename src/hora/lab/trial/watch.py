"""How far a trial is that runs now, from the files that it writes meanwhile."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hora.errors import BadData
from hora.lab.trial.cost import steps_of
from hora.workloads import folder as run_folder
from hora.workloads import options_of, run_record

__all__ = ["TrialMonitor"]

_TAIL = 4096  # bytes, in which there is a whole line


class TrialMonitor:
    """One trial's folder. ``look`` is to be called now and then, with the seconds that the trial has run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._first: tuple[float, int] | None = None  # seconds and steps when steps were first seen
        self._last: tuple[float, int] = (0.0, 0)
        self.steps = 0.0  # in all; 0 until it is known
        self.images_per_s = 0.0

    @property
    def step(self) -> int:
        return self._last[1]

    def look(self, seconds: float) -> None:
        if not self.steps:
            self.steps = _steps(self._folder)
        facts = _last_line(self._folder / run_record.FILE)
        step = facts.get("step", 0)
        if not isinstance(step, int) or step <= self.step:
            return
        self._last = (seconds, step)
        self._first = self._first or self._last
        self.images_per_s = facts.get("images_per_s") or self.images_per_s

    @property
    def left_s(self) -> float | None:
        """What its steps will still take at the pace they had; None if that is not known."""
        if self._first is None or not self.steps or self._last[1] <= self._first[1]:
            return None
        each_s = (self._last[0] - self._first[0]) / (self._last[1] - self._first[1])
        return max(0.0, self.steps - self.step) * each_s


def _steps(folder: Path) -> float:
    """The steps that the run has reported; 0 if none yet."""
    try:
        file = run_folder.read(folder)
        options = options_of(file.workload).of(file.options)
    except (BadData, KeyError, ValueError):
        return 0.0
    samples = file.plan.get("samples")
    return steps_of(options, file.workers, samples if isinstance(samples, int) else 0)


def _last_line(path: Path) -> dict[str, Any]:
    """The last whole line about a step; {} if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            lines = file.read().split(b"\n")
    except OSError:
        return {}
    whole = run_record.decoded(reversed(lines), dict[str, Any])
    return next((facts for facts in whole if "images_per_s" in facts), {})
