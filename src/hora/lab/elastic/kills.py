"""Kills by plan: every few seconds a worker, chosen by a seed, gets SIGKILL. Who is in the job is read from its
record, so that no other process is ever killed; the last worker is spared: it has the only copy of the state."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from hora.lab.records.experiment_writer import Watcher
from hora.lab.trial import Trial
from hora.workloads import folder as run_folder

__all__ = ["KillPlan", "Killer"]


class KillPlan(NamedTuple):
    """How many kills, how many seconds apart, and when the first is; the seed chooses the workers."""

    kills: int
    every_s: float
    seed: int


class Killer:
    """Carries out a plan while a trial runs; ``beside`` watches too."""

    def __init__(
        self,
        plan: KillPlan,
        beside: Watcher | None = None,
        kill: Callable[[int], None] = lambda pid: os.kill(pid, signal.SIGKILL),
    ) -> None:
        self._plan, self._beside, self._kill = plan, beside, kill
        self._random = random.Random(plan.seed)
        self._due_s: float | None = None  # the next one; None before the first step
        self.killed: list[int] = []  # workers

    def look(self, trial_: Trial, folder: Path, seconds: float) -> None:
        """The trial runs, for that many seconds; kill, if it is time."""
        if self._beside is not None:
            self._beside.look(trial_, folder, seconds)
        note = run_folder.earlier(folder)
        if len(self.killed) == self._plan.kills or note is None or not note.generations:
            return
        if self._due_s is None and note.generations[-1].without_steps_s is None and not _has_stepped(folder):
            return
        if self._due_s is None:
            self._due_s = seconds + self._plan.every_s
        members = note.generations[-1].members
        if seconds < self._due_s or len(members) < 2 or not all(_lives(pid) for _, _, pid in members):
            return  # too early; or the last one has not been replaced, or noticed, yet
        worker, _, pid = self._random.choice(members)
        self._kill(pid)
        self.killed.append(worker)
        self._due_s = max(seconds, self._due_s + self._plan.every_s)

    def stop(self) -> None:
        """The trial is over."""
        if self._beside is not None:
            self._beside.stop()


def _has_stepped(folder: Path) -> bool:
    from hora.workloads.run_record import FILE

    with contextlib.suppress(OSError):
        return (folder / FILE).stat().st_size > 0
    return False


def _lives(pid: int) -> bool:
    """Whether it is there and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False
