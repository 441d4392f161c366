"""What a run learned, epoch by epoch, and by when: from the epoch lines of its metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from hora.lab.quality.spread import mean

__all__ = ["Curve", "Learned", "Reached", "learned", "mean_curve", "reached"]


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """A run's epochs. Accuracies are shares; what a workload does not tell is nan."""

    epoch: list[float]  # passes over the data that are done
    samples: list[int]
    seconds: list[float]  # since training began, validation included
    steps: list[int]
    train_error: list[float]
    top1: list[float]
    top5: list[float]

    @property
    def best(self) -> int:
        """Which epoch's validation was the best, the first of equals."""
        return max(range(len(self.top1)), key=lambda at: self.top1[at])


def learned(epochs: Sequence[Mapping[str, Any]], whole: float = math.inf) -> Learned | None:
    """What a run learned, from its epoch lines; None if there is no validation in them. ``whole``: planned epochs.

    >>> lines = [{"epoch": 0, "step": 3, "samples": 30, "epoch_s": 2.0, "accuracy": 0.5, "val_accuracy": 0.6},
    ...          {"epoch": 1, "step": 6, "samples": 60, "epoch_s": 1.0, "accuracy": 0.7, "val_accuracy": 0.8}]
    >>> found = learned(lines)
    >>> found.best, found.epoch, found.seconds, [round(error, 2) for error in found.train_error]
    (1, [1.0, 2.0], [2.0, 3.0], [0.5, 0.3])
    """
    lines = [line for line in epochs if _number(line.get("val_accuracy"))]
    if not lines:
        return None
    passed, seconds = 0.0, []
    for line in lines:
        passed += _or_nan(line.get("epoch_s"))
        seconds.append(passed)
    return Learned(
        epoch=[min(line["epoch"] + 1.0, whole) for line in lines],
        samples=[line.get("samples", 0) for line in lines],
        seconds=seconds,
        steps=[line.get("step", 0) for line in lines],
        train_error=[1 - _or_nan(line.get("accuracy")) for line in lines],
        top1=[line["val_accuracy"] for line in lines],
        top5=[_or_nan(line.get("val_top5")) for line in lines],
    )


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """Errors by epoch and by samples: means over seeds, and the smallest and largest of them."""

    epoch: list[float]
    samples: list[int]
    train_error: list[float]
    val_error: list[float]
    val_error_low: list[float]
    val_error_high: list[float]


def mean_curve(runs: Sequence[Learned]) -> Curve | None:
    """The mean curve of runs that differ only by their seeds, over the epochs that all of them have.

    >>> lines = [{"epoch": 0, "samples": 30, "epoch_s": 2.0, "accuracy": 0.5}]
    >>> seeds = [learned([lines[0] | {"val_accuracy": value}]) for value in (0.5, 0.75)]
    >>> curve = mean_curve([seed for seed in seeds if seed])
    >>> curve.val_error, curve.val_error_low, curve.val_error_high
    ([0.375], [0.25], [0.5])
    """
    if not runs:
        return None
    count = min(len(run.epoch) for run in runs)
    errors = [[1 - run.top1[at] for run in runs] for at in range(count)]
    return Curve(
        epoch=runs[0].epoch[:count],
        samples=runs[0].samples[:count],
        train_error=[mean([run.train_error[at] for run in runs]) for at in range(count)],
        val_error=[mean(each) for each in errors],
        val_error_low=[min(each) for each in errors],
        val_error_high=[max(each) for each in errors],
    )


class Reached(msgspec.Struct, frozen=True):
    """What a run had reached by then: epochs done, and the best validation among them (nan if there was none)."""

    epochs: float = 0.0
    top1: float = math.nan


def reached(run: Learned, within_s: float, step_s: float | None = None) -> Reached:
    """What was reached by the run's own clock; or with steps of ``step_s`` seconds, as predicted.

    >>> lines = [{"epoch": n, "step": 10 * (n + 1), "epoch_s": 2.0, "val_accuracy": 0.1 * n} for n in range(4)]
    >>> run = learned(lines)
    >>> reached(run, 5.0), reached(run, 1.0).epochs, reached(run, 1.0, step_s=0.03).epochs
    (Reached(epochs=2.0, top1=0.1), 0.0, 3.0)
    """
    clock = run.seconds if step_s is None else [steps * step_s for steps in run.steps]
    done = [at for at, seconds in enumerate(clock) if seconds <= within_s]
    if not done:
        return Reached()
    return Reached(run.epoch[done[-1]], max(run.top1[at] for at in done))
