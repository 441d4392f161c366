"""The experiment: a trial a point, and a row of each, whatever comes of it.

What does not fit into memory, diverges or fails is a row and not the end. All is written down after every trial, and a
sweep that goes on in its folder takes what is done from there; TPE is told of it in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from hora.errors import UsageError
from hora.lab.quality.conduct import Say, conduct, state_of
from hora.lab.quality.trials import saving
from hora.lab.records import Book
from hora.lab.records.progress import Progress
from hora.lab.sweep.limits import Limits
from hora.lab.sweep.search import Search
from hora.lab.sweep.space import WORKERS, Point, check_point, value_text
from hora.lab.throughput.pool import plain
from hora.lab.trial import Outcome, Trial
from hora.workloads import options_of

__all__ = ["USUAL_METRICS", "Setup", "is_highest_best", "measure", "metric_of"]

USUAL_METRICS = {
    "mnist": "val_accuracy",
    "cifar10": "val_accuracy",
    "imagenet": "val_accuracy",
    "gan3d": "val_loss",
    "synthetic": "images_per_s",
}


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What all points have in common."""

    workload: str
    fixed: Mapping[str, Any]  # options of `hora train`, by field name
    metric: str
    highest: bool
    workers: int = 1
    threads: int | None = None
    keep_models: bool = False
    timeout_s: float = 24 * 3600.0


def is_highest_best(metric: str) -> bool:
    """Whether more of it is better, by its name.

    >>> [is_highest_best(name) for name in ("val_accuracy", "images_per_s", "val_loss", "seconds", "val_moment_error")]
    [True, True, False, False, False]
    """
    return metric.endswith("per_s") or not any(
        word in metric for word in ("loss", "error", "seconds", "_s", "analysis", "memory")
    )


def metric_of(outcome: Outcome, metric: str, *, highest: bool) -> float | None:
    """What a run came to: the best of its epochs, or what is said of the whole run. None if it did not end well.

    >>> run = Outcome(trial=Trial(name="a", workload="mnist"), state="done", folder="", images_per_s=100.0,
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
        f"--metric {metric}: a run of {outcome.trial.workload} does not tell it. It tells {', '.join(known)}. Give one "
        "of those, and --resume to go on."
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def measure(setup: Setup, search: Search, book: Book, say: Say) -> None:
    """Try every point; rows and notes are in the book, also of what was done when it is interrupted."""
    limits, progress = Limits(), Progress(book, search.total, say)
    book.notes[:] = methods(setup)
    rows: list[dict[str, Any]] = []
    for name, point in search.points():
        whole = _whole(setup, point)
        progress.begin(f"{setup.workload}, " + " ".join(f"{key}={value_text(each)}" for key, each in point.items()))
        too_large = limits.refuses(whole)
        if too_large is None:
            check_point(setup.workload, setup.fixed, point)
            outcome = conduct(book, _trial(setup, name, point))
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


def _whole(setup: Setup, point: Point) -> dict[str, Any]:
    """The point with its batch and its workers, given or not."""
    options = {**setup.fixed, **{name: value for name, value in point.items() if name != WORKERS}}
    return {WORKERS: setup.workers, **point, "batch": options_of(setup.workload).of(options).batch}


def _trial(setup: Setup, name: str, point: Point) -> Trial:
    timed = {"validate": False} if setup.metric == "images_per_s" else {}
    options = {**saving(setup.keep_models), **timed, **setup.fixed, **point}
    workers = options.pop(WORKERS, setup.workers)
    return Trial(
        name=name,
        workload=setup.workload,
        workers=workers,
        options=options,
        threads_per_worker=setup.threads,
        timeout_s=setup.timeout_s,
    )


def _row(
    setup: Setup, name: str, point: Point, outcome: Outcome | None, value: float | None, state: str, error: str
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
        setup.metric: value if value is None else plain(value),
        "best": False,
        "state": state,
        "error": error,
    }


def _mark(rows: list[dict[str, Any]], setup: Setup) -> None:
    known = [row for row in rows if row[setup.metric] is not None]
    for row in rows:
        row["best"] = False
    if known:
        choose = max if setup.highest else min
        choose(known, key=lambda row: row[setup.metric])["best"] = True


def _result_text(setup: Setup, value: float | None, state: str, outcome: Outcome | None) -> str:
    if value is None:
        return state
    speed = f", {outcome.images_per_s:,.0f} images/s" if outcome and math.isfinite(outcome.images_per_s) else ""
    return f"{setup.metric} {value:.5g}{'' if setup.metric == 'images_per_s' else speed}"


def methods(setup: Setup) -> list[str]:
    """How the figures were made, for whoever reads them later."""
    better = "highest" if setup.highest else "lowest"
    return [
        f"the best is the {better} {setup.metric} of any epoch, each point run once: points that differ by less than "
        "seeds do are alike",
        "images/s is that of steady steps; the time is of the whole run, with start-up and validation",
    ]
