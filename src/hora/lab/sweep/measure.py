"""The experiment: a trial a point, and a row of each, whatever the outcome.

What does not fit into memory, diverges or fails is a row and not the end. All is written down after every trial, and a
sweep that continues in its folder takes what is done from there; TPE is told of it in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from hora.errors import UsageError
from hora.lab.columns import is_number
from hora.lab.quality.conduct import Say, conduct, state_of
from hora.lab.quality.trials import LONGEST_S, saving
from hora.lab.records import ExperimentWriter
from hora.lab.records.progress import Progress
from hora.lab.sweep.limits import MemoryLimits
from hora.lab.sweep.search import Search
from hora.lab.sweep.space import WORKERS, Point, check_point, value_text
from hora.lab.throughput.pool import plain
from hora.lab.trial import Trial, TrialOutcome
from hora.text import count_text, duration_text
from hora.workloads import options_of

__all__ = ["SweepSetup", "is_highest_best", "measure", "metric_of", "outcome_text", "trial_of"]


class SweepSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What all points have in common."""

    workload: str
    fixed: Mapping[str, Any]  # options of `hora train`, by field name
    metric: str
    highest: bool
    workers: int = 1
    threads: int | None = None
    hosts: str = ""  # as -H takes them; where a point is trained, which is no part of it
    keep_models: bool = False


def is_highest_best(metric: str) -> bool:
    """Whether more of it is better, by its name.

    >>> [is_highest_best(name) for name in ("val_accuracy", "images_per_s", "val_loss", "seconds", "val_moment_error")]
    [True, True, False, False, False]
    """
    return metric.endswith("per_s") or not any(
        word in metric for word in ("loss", "error", "seconds", "_s", "analysis", "memory")
    )


def metric_of(outcome: TrialOutcome, metric: str, *, highest: bool) -> float | None:
    """The metric of a run: the best of its epochs, or that of the whole run. None if it failed.

    >>> run = TrialOutcome(trial=Trial(name="a", workload="mnist"), state="done", folder="", images_per_s=100.0,
    ...               result={"val_loss": 0.3}, epochs=[{"val_loss": 0.2}, {"val_loss": 0.3}])
    >>> metric_of(run, "val_loss", highest=False), metric_of(run, "images_per_s", highest=True)
    (0.2, 100.0)
    """
    if not outcome.done:
        return None
    values = [float(epoch[metric]) for epoch in outcome.epochs if _is_number(epoch.get(metric))]
    if values:
        return max(values) if highest else min(values)
    if metric == "images_per_s" and math.isfinite(outcome.images_per_s):
        return outcome.images_per_s
    if _is_number(outcome.result.get(metric)):
        return float(outcome.result[metric])
    if any(metric in facts for facts in (*outcome.epochs, outcome.result)):  # it was nan or infinite throughout
        return None
    numbers = {name for name, value in outcome.result.items() if _is_number(value)}
    known = sorted(numbers | {name for epoch in outcome.epochs for name in epoch} | {"images_per_s"})
    raise UsageError(
        f"--metric {metric}: a run of {outcome.trial.workload} does not report it. It reports {', '.join(known)}. Give "
        "one of those, and --resume to continue."
    )


def _is_number(value: Any) -> bool:
    return is_number(value) and math.isfinite(value)


def measure(setup: SweepSetup, search: Search, book: ExperimentWriter, say: Say) -> None:
    """Try every point; rows and notes are in the book, also of what was done when it is interrupted."""
    limits, progress = MemoryLimits(), Progress(book, search.total, say)
    book.notes[:] = methods(setup)
    rows: list[dict[str, Any]] = []
    for name, point in search.points():
        whole = _whole(setup, point)
        progress.begin(f"{setup.workload}, " + " ".join(f"{key}={value_text(each)}" for key, each in point.items()))
        too_large = limits.refuses(whole)
        if too_large is None:
            check_point(setup.workload, setup.fixed, point)
            outcome = conduct(book, trial_of(setup, name, point), setup.hosts)
            value = metric_of(outcome, setup.metric, highest=setup.highest)
            state, error = state_of(outcome), outcome.error
            if state == "out of memory":
                limits.learn(whole)
        else:
            outcome, value, state = None, None, "skipped"
            error = f"a batch of {too_large} did not fit into memory"
        search.told(point, value, hopeless=state in ("out of memory", "diverged", "skipped"))
        rows.append(_row(setup, name, point, outcome, value, state, error))
        _mark(rows, setup)
        book.rows = rows
        book.write()
        progress.tell(_result_text(setup, value, state, outcome))
    book.notes += [f"{kind or 'here'}: a batch of {batch} does not fit into memory" for kind, batch in limits]
    book.write()


def _whole(setup: SweepSetup, point: Point) -> dict[str, Any]:
    """The point with its batch and its workers, given or not."""
    options = {**setup.fixed, **{name: value for name, value in point.items() if name != WORKERS}}
    return {WORKERS: setup.workers, **point, "batch": options_of(setup.workload).of(options).batch}


def trial_of(setup: SweepSetup, name: str, point: Point) -> Trial:
    """The run of a point."""
    timed = {"validate": False} if setup.metric == "images_per_s" else {}
    options = {**saving(setup.keep_models), **timed, **setup.fixed, **point}
    workers = options.pop(WORKERS, setup.workers)
    return Trial(
        name=name,
        workload=setup.workload,
        workers=workers,
        options=options,
        threads_per_worker=setup.threads,
        timeout_s=LONGEST_S,
    )


def _row(
    setup: SweepSetup,
    name: str,
    point: Point,
    outcome: TrialOutcome | None,
    value: float | None,
    state: str,
    error: str,
) -> dict[str, Any]:
    options = options_of(setup.workload).of(
        {**setup.fixed, **{key: each for key, each in point.items() if key != WORKERS}}
    )
    workers = point.get(WORKERS, setup.workers)
    speed = outcome.images_per_s if outcome is not None and outcome.done else math.nan
    return {
        "trial": name,
        **point,
        "workers": workers,
        "batch": options.batch,
        "lr": options.lr,
        "peak_lr": plain(options.plan(1 << 40, options.emulate_workers or workers).peak_lr),
        "images_per_s": plain(speed),
        "time_s": plain(outcome.seconds) if outcome is not None else None,
        **_at_best(outcome),
        setup.metric: value if value is None else plain(value),
        "best": False,
        "state": state,
        "error": error,
    }


def _at_best(outcome: TrialOutcome | None) -> dict[str, Any]:
    """How many steps a run had, and at which its accuracy was best, with its top-5 there; for what learns to classify.

    >>> _at_best(TrialOutcome(trial=Trial(name="a", workload="imagenet"), state="done", folder="", result={"steps": 20},
    ...                  epochs=[{"step": 10, "val_accuracy": 0.5, "val_top5": 0.8}, {"step": 20, "val_accuracy": 0}]))
    {'steps': 20, 'best_step': 10, 'top5': 0.8}
    """
    known = [line for line in (outcome.epochs if outcome else []) if _is_number(line.get("val_accuracy"))]
    if outcome is None or not known:
        return {}
    best = max(known, key=lambda line: float(line["val_accuracy"]))
    top5 = {"top5": best["val_top5"]} if _is_number(best.get("val_top5")) else {}
    return {"steps": outcome.result.get("steps"), "best_step": best.get("step"), **top5}


def _mark(rows: list[dict[str, Any]], setup: SweepSetup) -> None:
    known = [row for row in rows if row[setup.metric] is not None]
    for row in rows:
        row["best"] = False
    if known:
        choose = max if setup.highest else min
        choose(known, key=lambda row: row[setup.metric])["best"] = True


def _result_text(setup: SweepSetup, value: float | None, state: str, outcome: TrialOutcome | None) -> str:
    if value is None:
        return state
    speed = f", {count_text(outcome.images_per_s)} images/s" if outcome and math.isfinite(outcome.images_per_s) else ""
    told = f"{value:.2%}".replace("%", " %") if setup.metric.endswith(("accuracy", "top5")) else f"{value:.5g}"
    return f"{setup.metric} {told}{'' if setup.metric == 'images_per_s' else speed}"


def outcome_text(setup: SweepSetup, outcome: TrialOutcome) -> str:
    """What came of a point that was trained by itself, in the table's units.

    >>> run = TrialOutcome(trial=Trial(name="a", workload="mnist"), state="done", folder="", seconds=31.0,
    ...               epochs=[{"val_accuracy": 0.5}])
    >>> outcome_text(SweepSetup(workload="mnist", fixed={}, metric="val_accuracy", highest=True), run)
    'val_accuracy 50.00 % in 31 s'
    """
    value = metric_of(outcome, setup.metric, highest=setup.highest)
    return f"{_result_text(setup, value, state_of(outcome), outcome)} in {duration_text(outcome.seconds)}"


def methods(setup: SweepSetup) -> list[str]:
    """How the figures were measured."""
    better = "highest" if setup.highest else "lowest"
    return [
        f"the best is the {better} {setup.metric} of any epoch, each point run once: differences smaller than "
        "those between seeds are not significant",
        "images/s is that of steady steps; the time is of the whole run, with start-up and validation",
    ]
