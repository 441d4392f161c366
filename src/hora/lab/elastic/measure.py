"""The experiment: how long steps take, an undisturbed run, and the same with kills; a row of each."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from hora.lab.elastic.kills import Killer, KillPlan
from hora.lab.records import ExperimentWriter
from hora.lab.records.progress import Progress
from hora.lab.trial import SPEED_ONLY, Trial, TrialOutcome
from hora.text import plural
from hora.workloads import folder as run_folder
from hora.workloads.folder import Generation, RunFile

__all__ = ["Setup", "goodput", "measure", "row", "steps_for"]

_ENDLESS = 10_000.0  # epochs; steps end it
_WARM_UP = 40  # steps of the run that finds out how long they take
_TAIL = 1.0  # what follows the last kill, in times of --every


class Setup(NamedTuple):
    """What is measured. ``steps``: 0 for as many as the kills need."""

    workload: str
    fewest: int
    most: int
    logical: int
    kills: int
    every_s: float
    seeds: tuple[int, ...]
    steps: int = 0
    spares: int = 0
    options: Mapping[str, Any] = {}


def measure(setup: Setup, book: ExperimentWriter, say: Callable[[str], None]) -> None:
    """Run all of it; rows, findings and notes are in the book."""
    progress = Progress(book, 2 + len(setup.seeds) - bool(setup.steps), say)
    steps = setup.steps
    if not steps:
        tried = _run(progress, book, trial(setup, "pace", _WARM_UP, elastic=False))
        if not tried.done:
            book.notes.append(f"nothing was measured: the first run {tried.state}: {tried.error}")
            return
        steps = steps_for(tried.step_s, setup)
    plain = _run(progress, book, trial(setup, "undisturbed", steps, elastic=True))
    book.rows = [row("undisturbed", plain, plain)]
    for seed in setup.seeds:
        book.progress = Killer(KillPlan(setup.kills, setup.every_s, seed), progress)
        outcome = _run(progress, book, trial(setup, f"kills-{seed}", steps, elastic=True))
        book.rows.append(row(f"kills, seed {seed}", outcome, plain))
        book.progress = progress
        book.write()
    book.findings = findings(book.rows)
    if any(row["state"] == "done" and row["kills"] < setup.kills for row in book.rows[1:]):
        book.notes.append(
            f"not all {setup.kills} kills were made: the last worker is spared, and a replacement took longer than the "
            "run. Give more --steps, --spares 1, or a larger --every"
        )
    book.notes.append(
        "recovery and join: from the last step before workers changed to the first one after; goodput: the share of "
        "the time in which steps were made, whatever number of workers made them"
    )


def _run(progress: Progress, book: ExperimentWriter, trial_: Trial) -> TrialOutcome:
    progress.begin(trial_.name)
    outcome = book.run(trial_)
    progress.tell(f"{outcome.images_per_s:.0f} images/s in {outcome.seconds:.0f} s" if outcome.done else outcome.error)
    return outcome


def trial(setup: Setup, name: str, steps: int, *, elastic: bool) -> Trial:
    """One run."""
    return Trial(
        name=name,
        workload=setup.workload,
        workers=setup.most,
        elastic=f"{setup.fewest}:{setup.most}" if elastic else "",
        spares=setup.spares if elastic else 0,
        options={
            **SPEED_ONLY, "epochs": _ENDLESS, **setup.options, "logical_workers": setup.logical, "max_steps": steps,
        },
    )  # fmt: skip


def steps_for(step_s: list[float], setup: Setup) -> int:
    """The number of steps that fills the time that the kills take.

    >>> steps_for([0.01, 0.02, 0.01], Setup("mnist", 1, 2, 2, kills=3, every_s=5.0, seeds=(1,)))
    2000
    """
    seconds = (setup.kills + _TAIL) * setup.every_s
    return max(_WARM_UP, round(seconds / max(1e-4, statistics.median(step_s)))) if step_s else _WARM_UP


def row(name: str, outcome: TrialOutcome, plain: TrialOutcome) -> dict[str, Any]:
    """A run's figures."""
    note = run_folder.earlier(Path(outcome.folder))
    generations = note.generations if note else []
    lost = _costs([each for each in generations[1:] if each.left])
    came = _costs([each for each in generations[1:] if each.came and not each.left])
    own, other = outcome.result.get("parameters_sha256"), plain.result.get("parameters_sha256")
    return {
        "run": name,
        "workers": outcome.trial.workers,
        "kills": sum(len(each.left) for each in generations),
        "generations": len(generations),
        "recovery_s": statistics.median(lost) if lost else None,
        "slowest_recovery_s": max(lost, default=None),
        "join_s": statistics.median(came) if came else None,
        "goodput": goodput(note, outcome.step_s) if note and outcome.done else None,
        "images_per_s": outcome.images_per_s,
        "time_s": outcome.seconds,
        "same_bits": own == other if own and other and outcome is not plain else None,
        "state": outcome.state,
        "error": outcome.error or None,
    }


def _costs(generations: list[Generation]) -> list[float]:
    return [each.without_steps_s for each in generations if each.without_steps_s is not None]


def goodput(note: RunFile, step_s: list[float]) -> float:
    """The share of the time from the first step to the end in which steps were made."""
    try:
        began, ended = (datetime.fromisoformat(text).timestamp() for text in (note.first_step, note.ended))
    except ValueError:
        return math.nan
    usual = statistics.median(step_s) if step_s else 0.0
    lost = sum(max(0.0, cost - usual) for cost in _costs(note.generations[1:]))
    return max(0.0, 1.0 - lost / (ended - began)) if ended > began else math.nan


def findings(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the rows say, in sentences."""
    disturbed = [row for row in rows[1:] if row["state"] == "done"]
    found = []
    failed = [row["run"] for row in rows if row["state"] != "done"]
    if failed:
        found.append({"title": f"did not finish: {', '.join(failed)}"})
    if disturbed:
        kills = sum(row["kills"] for row in disturbed)
        alike = [row for row in disturbed if row["same_bits"]]
        if len(alike) == len(disturbed):
            title = f"after {plural(kills, 'kill')} the parameters are bitwise identical to the run without kills"
        else:
            odd = ", ".join(row["run"] for row in disturbed if not row["same_bits"])
            title = f"the parameters differ from those of the undisturbed run: {odd}"
        found.append({"title": title})
    return found
