"""How an experiment goes: beforehand about how long it takes and why so, then a line for each trial with the time that
is left. On a terminal there is more below these lines while a trial runs: its steps, its speed, where its log is.

The time that is left begins as a guess (``trial.cost``) and is corrected by what trials take: if those that have run
took twice as long as was thought, so will the others. All of it goes to stderr, and what cannot be drawn is not:
telling never ends an experiment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hora.lab.records.experiment_writer import ExperimentWriter
from hora.lab.trial import LOG, Trial
from hora.lab.trial.cost import Costs
from hora.lab.trial.watch import TrialMonitor
from hora.text import duration_text

__all__ = ["Progress"]

Say = Callable[[str], None]


class Progress:
    """The trials of one experiment, in the order in which they run: all of them, or how many there will be.

    Use it so: ``begin(name)``, then run the trial by the book, then ``tell(what came of it)``.
    """

    def __init__(self, book: ExperimentWriter, planned: int | Sequence[Trial], say: Say) -> None:
        self._book, self._say = book, say
        self._total = planned if isinstance(planned, int) else len(planned)
        self._costs = Costs(book.folder.parent)
        self._planned = {} if isinstance(planned, int) else {trial.name: trial for trial in planned}
        self._number, self._name = 0, ""
        self._thought_s = self._took_s = 0.0  # of the trials that have run
        self._runs = 0  # how many those are
        self._now: _Running | None = None
        self._is_new = False  # the trial was run; it was not there from before
        book.progress = self

    def begin(self, name: str) -> None:
        """The next trial, as people call it."""
        self._number += 1
        self._total = max(self._total, self._number)
        self._name, self._is_new = name, False

    def tell(self, text: str) -> None:
        """It is over: ``3/12 mnist, linear, 8 workers, seed 1: top-1 97.31 % in 14 s; about 3 min left``."""
        rest = self._total - self._number
        left = f"; about {duration_text(self._rest_s())} left" if rest > 0 and self._runs else ""
        kept = "" if self._is_new else " (from before)"
        self._say(f"{self._number}/{self._total} {self._name}: {text}{kept}{left}")

    # ---- for the book ----

    def look(self, trial_: Trial, folder: Path, seconds: float) -> None:
        """It runs, and has so for some seconds; called about once a second."""
        if self._now is None:
            self._is_new, self._now = True, _Running(self._costs.expect(trial_), TrialMonitor(folder))
            self._planned.pop(trial_.name, None)
            if not self._runs:
                self._announce(trial_)
            self._now.draw = _drawing()
        self._now.seconds = seconds
        if self._now.draw is not None:
            self._now.watch.look(seconds)
            try:
                self._now.draw(self._lines(folder))
            except Exception:
                self._now.draw = None

    def stop(self) -> None:
        """It is over; what was drawn is taken away."""
        now, self._now = self._now, None
        if now is None:
            return
        with suppress(Exception):
            if now.draw is not None:
                now.draw(None)
        self._thought_s += now.thought_s
        self._took_s += now.seconds
        self._runs += 1

    # ---- words ----

    def _announce(self, trial: Trial) -> None:
        count = self._total - self._number + 1
        speed = self._costs.speed(trial)
        trials = f"{count} trial{'s' if count > 1 else ''}"
        about = duration_text(self._now_s() + self._rest_s())
        better = "" if speed.trials else "; the first trial will improve it"
        self._say(f"{trials}, about {about} ({speed.basis}{better}); in {_short(self._book.folder)}")

    def _lines(self, folder: Path) -> list[str]:
        now = self._now
        assert now is not None
        watch = now.watch
        what = f"step {watch.step:,}" + (f"/{watch.steps:,.0f}" if watch.steps else "") if watch.step else "starting"
        speed = f", {watch.images_per_s:,.{0 if watch.images_per_s >= 100 else 1}f} images/s" if watch.step else ""
        left = f", about {duration_text(self._now_s())} left" if self._now_s() >= 0.5 else ""
        lines = [f"{self._number}/{self._total} {self._name}", f"{what}{speed}; {duration_text(now.seconds)}{left}"]
        if self._number < self._total:
            lines.append(f"all {self._total} trials: about {duration_text(self._now_s() + self._rest_s())} left")
        return [*lines, f"log: {_short(folder / LOG)}"]

    # ---- seconds ----

    def _now_s(self) -> float:
        """What the trial that runs will still take."""
        if self._now is None:
            return 0.0
        by_steps = self._now.watch.left_s
        return by_steps if by_steps is not None else max(0.0, self._now.thought_s * self._ratio() - self._now.seconds)

    def _rest_s(self) -> float:
        """What those will take that have not begun."""
        if self._planned:
            return self._ratio() * sum(self._costs.expect(trial) for trial in self._planned.values())
        thought_s, count = self._thought_s, self._runs
        if self._now is not None:
            thought_s, count = thought_s + self._now.thought_s, count + 1
        return self._ratio() * (self._total - self._number) * thought_s / count if count else 0.0

    def _ratio(self) -> float:
        """How many times as long as was thought trials take; also the one that runs, once its steps tell."""
        thought_s, took_s = self._thought_s, self._took_s
        if self._now is not None and self._now.watch.left_s is not None:
            thought_s += self._now.thought_s
            took_s += self._now.seconds + self._now.watch.left_s
        return took_s / thought_s if thought_s else 1.0


class _Running:
    """The trial that runs."""

    def __init__(self, thought_s: float, watch: TrialMonitor) -> None:
        self.thought_s, self.watch, self.seconds = thought_s, watch, 0.0
        self.draw: Callable[[list[str] | None], None] | None = None


def _drawing() -> Callable[[list[str] | None], None] | None:
    """What draws lines in their place on stderr, and takes them away if it is given None; None if nobody can look."""
    if not sys.stderr.isatty():
        return None
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(stderr=True, highlight=False)
    if console.is_dumb_terminal:
        return None
    live = Live(console=console, transient=True, auto_refresh=False)
    live.start()

    def draw(lines: list[str] | None) -> None:
        if lines is None:
            live.stop()
            return
        drawn: Any = Text("\n    ".join(lines), overflow="fold")
        drawn.stylize("bold", 0, len(lines[0]))
        live.update(drawn, refresh=True)

    return draw


def _short(path: Path) -> str:
    """From here, if it lies below."""
    with suppress(ValueError):
        return os.path.relpath(path) if path.resolve().is_relative_to(Path.cwd()) else str(path)
    return str(path)
