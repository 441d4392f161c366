"""Outcomes to the rows of the table: means over seeds, with the curves and what was reached in a fixed time."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from hora.lab.quality.conduct import state_of
from hora.lab.quality.curves import Learned, learned, mean_curve, reached
from hora.lab.quality.spread import difference, mean, spread
from hora.lab.quality.trials import FactorCase, QualitySetup, processes_for
from hora.lab.throughput.pool import plain
from hora.lab.trial import TrialOutcome

__all__ = ["StepTime", "make", "row", "runs_of"]

StepTime = Callable[[int, int], float]  # seconds of a step of that many workers with such a batch, as predicted


def runs_of(outcomes: Sequence[TrialOutcome]) -> list[Learned]:
    """What those that are done have learned."""
    found = [
        learned(outcome.epochs, outcome.trial.options.get("epochs", math.inf)) for outcome in outcomes if outcome.done
    ]
    return [run for run in found if run is not None]


def make(
    setup: QualitySetup,
    done: Mapping[FactorCase, Sequence[TrialOutcome]],
    minutes: Sequence[float] = (),
    step_time: StepTime | None = None,
) -> list[dict[str, Any]]:
    """A row for every cell that has run at least once."""
    baseline = next((runs_of(outcomes) for cell, outcomes in done.items() if cell.workers == 1), [])
    return [row(setup, cell, outcomes, baseline, minutes, step_time) for cell, outcomes in done.items() if outcomes]


def row(
    setup: QualitySetup,
    cell: FactorCase,
    outcomes: Sequence[TrialOutcome],
    baseline: Sequence[Learned],
    minutes: Sequence[float] = (),
    step_time: StepTime | None = None,
) -> dict[str, Any]:
    """The result of one factor on that many workers."""
    options = setup.recipe.options(cell.factor, cell.workers)
    plan = options.plan(1 << 40, cell.workers)
    processes = processes_for(cell.workers, setup.processes)
    runs = runs_of(outcomes)
    best = [run.top1[run.best] for run in runs]
    gap = difference(best, [run.top1[run.best] for run in baseline])
    curve = mean_curve(runs)
    emulated = processes != cell.workers
    return {
        "factor": cell.factor.name,
        "workers": cell.workers,
        "emulated": emulated,
        "processes": processes,
        "batch": options.batch,
        "global_batch": plan.global_batch,
        "peak_lr": plain(plan.peak_lr),
        "warmup": options.warmup if plan.warms_up else "none",
        "epochs": setup.recipe.epochs,
        "seeds": len(runs),
        "best_top1": plain(mean(best)),
        "best_top1_low": min(best) if len(best) > 1 else None,  # one seed has no interval
        "best_top1_high": max(best) if len(best) > 1 else None,
        "best_top1_spread": plain(spread(best)),
        "best_top1_seeds": best,
        "best_epoch": statistics.median(run.epoch[run.best] for run in runs) if runs else None,
        "final_top1": plain(mean([run.top1[-1] for run in runs])),
        "best_top5": plain(mean([max(run.top5) for run in runs])),
        "vs_baseline": plain(gap.value) if cell.workers > 1 else None,
        "vs_baseline_low": plain(gap.low) if cell.workers > 1 else None,
        "vs_baseline_high": plain(gap.high) if cell.workers > 1 else None,
        "time_s": plain(mean([run.seconds[-1] for run in runs])),
        "state": _state(outcomes, runs),
        "error": next((outcome.error for outcome in outcomes if not outcome.done), ""),
        "curve": None if curve is None else msgspec.to_builtins(curve),
        "budgets": [
            _budget(runs, limit, emulated, step_time and step_time(cell.workers, options.batch)) for limit in minutes
        ],
    }


def _state(outcomes: Sequence[TrialOutcome], runs: Sequence[Learned]) -> str:
    bad = [outcome for outcome in outcomes if not outcome.done]
    if bad:
        word = state_of(bad[0])
        return word if not runs else f"{word} with {len(bad)} of {len(outcomes)} seeds"
    return "done" if runs else "no validation"


def _budget(runs: Sequence[Learned], minutes: float, emulated: bool, step_s: float | None) -> dict[str, Any]:
    """What is reached in that many minutes. The time of emulated workers is not theirs, so it must be predicted."""
    if not runs or (emulated and step_s is None):
        return {"minutes": minutes, "epochs": None, "top1": None, "how": "not known"}
    by_then = [reached(run, 60 * minutes, step_s if emulated else None) for run in runs]
    return {
        "minutes": minutes,
        "epochs": plain(mean([each.epochs for each in by_then])),
        "top1": plain(mean([each.top1 for each in by_then])),
        "how": "predicted" if emulated else "measured",
    }
