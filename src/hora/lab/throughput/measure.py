"""The experiment: runs the trials of a grid by turns, and makes a row of each point."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hora.errors import UsageError
from hora.lab.records import ExperimentWriter
from hora.lab.records.progress import Progress
from hora.lab.throughput.cores import LoadMonitor
from hora.lab.throughput.grid import GridPoint, GridSetup, limits_of, turns
from hora.lab.throughput.pool import Pool, plain, ratio, with_ends
from hora.lab.throughput.strategies import NAMES, compared
from hora.lab.trial import Trial, TrialOutcome
from hora.lab.trial.measure import STUDY_STEPS
from hora.text import count_text

__all__ = ["Pools", "TrialRunner", "measure", "methods", "speed_text", "trial_text"]

Say = Callable[[str], None]
Pools = Mapping[tuple[GridPoint, bool], Pool]  # by point, and whether it is its limit's


class TrialRunner:
    """Runs trials one after the other, and says how each went: ``3/12 mnist, 2 workers, batch 64: 4,812 images/s``."""

    def __init__(self, book: ExperimentWriter, planned: int | Sequence[Trial], say: Say) -> None:
        self.book, self._progress = book, Progress(book, planned, say)
        self.outcomes: list[TrialOutcome] = []
        self._watch, self._fresh = LoadMonitor(), False

    def run(self, trial: Trial) -> TrialOutcome:
        self._progress.begin(trial_text(trial))
        began = time.monotonic()
        outcome = self.book.run(trial)
        self._fresh |= time.monotonic() - began >= outcome.seconds > 0  # it was not kept from before
        self.outcomes.append(outcome)
        self._progress.tell(speed_text(outcome))
        if outcome.state == "failed" and not any(before.done for before in self.outcomes):
            raise UsageError(f"{failures([outcome])[0]}. Nothing has worked so far, so the rest is not tried.")
        return outcome

    def others(self) -> float:
        """The share of this machine that other processes took; 0 if it is not known, as on other hosts."""
        hosts = any(outcome.trial.hosts for outcome in self.outcomes)  # whose processes are not ours
        return self._watch.others() if self._fresh and not hosts else 0.0

    def cautions(self) -> list[str]:
        """What is to be known about the machine meanwhile, and about trials that did not end well."""
        busy = self._watch.caution() if self.others() else ""
        return [*([busy] if busy else []), *failures(self.outcomes)]


def measure(job: GridSetup, grid: Sequence[GridPoint], book: ExperimentWriter, say: Say) -> None:
    """Run everything; rows and notes are in the book, also of what was done when it is interrupted."""
    trials = list(turns(job, grid))
    runner = TrialRunner(book, [trial for _, trial in trials], say)
    pools: dict[tuple[GridPoint, bool], Pool] = {}
    book.notes[:] = [*methods(job), *_more_methods(job)]
    for point, trial in trials:
        key = point, trial.independent
        pools[key] = pools.get(key, Pool([])).and_one(runner.run(trial))
        book.rows = _rows(grid, pools)
    book.notes += [*compared(book.rows), *runner.cautions()]


def _rows(grid: Sequence[GridPoint], pools: Pools) -> list[dict[str, Any]]:
    limits, rows = limits_of(grid), []
    for point in grid:
        pool = pools.get((point, False))
        if pool is None:
            continue  # its turn has not come
        limit = pools.get((limits[point.place], True), Pool([])) if point.place in limits else pool
        share = ratio(pool.speed_draws, limit.speed_draws)
        rows.append(
            {
                "workers": point.workers,
                "batch": point.batch,
                "threads": point.threads,
                "transport": point.transport,
                "strategy": point.strategy,
                "inter": point.inter or None,
                "limit_images_per_s": plain(limit.images_per_s.value),
                **with_ends("share_of_limit", share),
                **pool.facts(),
            }
        )
    return rows


def methods(job: GridSetup) -> list[str]:
    """How images/s were measured."""
    runs = "one run" if job.repeats == 1 else f"{job.repeats} runs, taken by turns,"
    return [
        f"images/s: images of all workers a step, over the median step of {runs} of {job.steps} steps; warm-up steps "
        "are left out, and nothing is validated or saved; the 90 % interval is from drawing runs and steps again",
        "limit: the same processes at once, each training alone, without communication, in the same turn; one worker "
        "is its own limit",
    ]


def _more_methods(job: GridSetup) -> list[str]:
    first = min(STUDY_STEPS, job.steps)
    fewer = f" (the study took {STUDY_STEPS})" if first < STUDY_STEPS else ""
    return [
        f"study: the reference study's formula, images of a step over the mean of the first {first} steps{fewer}, the "
        "very first included",
        "first s: from the start of the command to the end of the first step, imports and data included; CPU: of the "
        "cores that may be used, while it trained; memory: the most that all processes of the job had together",
    ]


def failures(outcomes: Sequence[TrialOutcome]) -> list[str]:
    """Those that did not end well, and where to look; each error once."""
    found: dict[str, str] = {}
    for outcome in outcomes:
        if not outcome.done:
            text = f"{outcome.state}: {outcome.error}" if outcome.error else outcome.state
            found.setdefault(text, f"{trial_text(outcome.trial)}: {text} (see {outcome.folder}/log.txt)")
    return list(found.values())


def trial_text(trial: Trial) -> str:
    """A trial as progress names it.

    >>> trial_text(Trial(name="x", workload="mnist", workers=2, options={"batch": 64}, threads_per_worker=1))
    'mnist, 2 workers, batch 64, 1 thread'
    """
    words = [
        trial.workload,
        f"{trial.workers} worker{'s' if trial.workers > 1 else ''}",
        f"batch {trial.options.get('batch', '?')}",
    ]
    if trial.threads_per_worker:
        words.append(f"{trial.threads_per_worker} thread{'s' if trial.threads_per_worker > 1 else ''}")
    if trial.inter_threads:
        words.append(f"inter {trial.inter_threads}")
    if trial.transport != "auto":
        words.append(trial.transport)
    if trial.options.get("strategy", "hora") != "hora":
        words.append(NAMES[trial.options["strategy"]])
    if trial.independent:
        words.append("limit")
    if trial.by_turns:
        words.append("by turns")
    if trial.timeline:
        words.append("timeline")
    if "-pauses-" in trial.name:
        words.append("with its pauses")
    return ", ".join(words)


def speed_text(outcome: TrialOutcome) -> str:
    """The result, in a few words."""
    if not outcome.done:
        return outcome.state
    return (
        f"{count_text(outcome.images_per_s)} images/s"
        if outcome.images_per_s >= 10
        else f"{outcome.images_per_s:.2g} images/s"
    )
