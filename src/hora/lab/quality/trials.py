"""The runs of a quality experiment: every factor on every number of workers with every seed, and one worker.

More workers than there are cores are emulated (``emulate_workers``), on as many processes as divide them evenly. One
worker is the baseline of all factors, and runs once a seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from hora.lab.quality.factors import BASELINE, FACTORS, Factor, Recipe
from hora.lab.trial import Trial
from hora.schedule import LearningRatePlan

__all__ = [
    "LONGEST_S", "FactorCase", "QualitySetup", "cells", "plan_of", "processes_for", "saving", "trial", "trials",
    "twins",
]  # fmt: skip

LONGEST_S = 24 * 3600.0  # of a run that learns


class FactorCase(NamedTuple):
    """A row of the table: one factor on that many workers."""

    factor: Factor
    workers: int


class QualitySetup(msgspec.Struct, frozen=True, kw_only=True):
    """All of a quality experiment."""

    recipe: Recipe
    workers: tuple[int, ...]
    factors: tuple[Factor, ...]
    seeds: tuple[int, ...]
    processes: int  # at most
    threads: int | None = None
    hosts: str = ""  # as -H takes them; where a run is, which is no part of it
    keep_models: bool = False
    samples: int = 0  # of an epoch; 0: not known


def processes_for(workers: int, most: int) -> int:
    """The most processes that divide the workers evenly.

    >>> [processes_for(workers, 2) for workers in (1, 2, 3, 8)], processes_for(24, 16)
    ([1, 2, 1, 2], 12)
    """
    return max(part for part in range(1, min(workers, most) + 1) if workers % part == 0)


def saving(keep_models: bool) -> dict[str, Any]:
    """Options of runs whose metrics are wanted, and perhaps what they end with."""
    return {"save_every": 0, "keep": 1} if keep_models else {"save": False}


def cells(setup: QualitySetup) -> list[FactorCase]:
    """The rows: one worker, then factor by factor. With fewer workers than a batch is divided by there is no row, nor
    of what would be the same as another.

    >>> from hora.lab.quality.factors import parse_factors
    >>> recipe = Recipe.of("mnist", {}, 1)
    >>> two = parse_factors("naive,reduced-batch")
    >>> some = QualitySetup(recipe=recipe, workers=(1, 2, 8), factors=two, seeds=(1,), processes=2)
    >>> [(cell.factor.name, cell.workers) for cell in cells(some)]
    [('baseline', 1), ('naive', 2), ('naive', 8), ('reduced-batch', 8)]
    """
    return [FactorCase(BASELINE, 1), *(cell for cell in _all(setup) if not twin(setup, cell))]


def twins(setup: QualitySetup) -> dict[FactorCase, str]:
    """The cells that are left out, and what each would be the same as."""
    return {cell: same for cell in _all(setup) if (same := twin(setup, cell))}


def twin(setup: QualitySetup, cell: FactorCase) -> str:
    """The factor that has the same rates at every step, so that it would be the same run; "" if none has. A warm-up
    that is shorter than a step is none, and so may one be to a rate that is no larger.

    >>> from hora.lab.quality.factors import parse_factors
    >>> some = QualitySetup(recipe=Recipe.of("mnist", {"batch": 10}, 1), workers=(1, 8), seeds=(1,), processes=2,
    ...     samples=1000,
    ...              factors=parse_factors("linear,gradual5,gradual10,gradual:1,iteration:1"))
    >>> [twin(some, cell) for cell in _all(some)]
    ['', 'linear', '', 'linear', '']
    """
    if not setup.samples or not cell.factor.warms_up or cell.factor.parts > 1:
        return ""
    mine, plan = _rates(setup, cell), plan_of(setup, cell)
    too_short = plan.warmup.epochs * plan.steps_per_epoch < 1
    if too_short or mine == _rates(setup, FactorCase(FACTORS["linear"], cell.workers)):
        return "linear"
    before = setup.factors[: setup.factors.index(cell.factor)]
    others = [factor for factor in before if factor.parts == 1]
    return next((factor.name for factor in others if _rates(setup, FactorCase(factor, cell.workers)) == mine), "")


def plan_of(setup: QualitySetup, cell: FactorCase) -> LearningRatePlan:
    """The rates of a cell, on the samples that there are."""
    return setup.recipe.options(cell.factor, cell.workers).plan(setup.samples, cell.workers)


def _all(setup: QualitySetup) -> list[FactorCase]:
    many = [workers for workers in setup.workers if workers > 1]
    return [FactorCase(factor, workers) for factor in setup.factors for workers in many if workers >= factor.parts]


def _rates(setup: QualitySetup, cell: FactorCase) -> list[float]:
    """The rates of the first thousand steps of the run, in which any warm-up differs from none."""
    plan = plan_of(setup, cell)
    steps = min(1000, math.ceil(setup.recipe.epochs * plan.steps_per_epoch))
    return [round(plan.lr_at_epoch(step / plan.steps_per_epoch), 12) for step in range(steps)]


def trial(setup: QualitySetup, cell: FactorCase, seed: int) -> Trial:
    """One run."""
    changes = setup.recipe.changes(cell.factor, cell.workers)
    options: dict[str, Any] = {**saving(setup.keep_models), **changes, "seed": seed}
    processes = processes_for(cell.workers, setup.processes)
    if processes != cell.workers:
        options["emulate_workers"] = cell.workers
    return Trial(
        name=f"{cell.factor.name.replace(':', '')}-{cell.workers}w-seed{seed}",
        workload=setup.recipe.workload,
        workers=processes,
        options=options,
        threads_per_worker=setup.threads,
        timeout_s=LONGEST_S,
    )


def trials(setup: QualitySetup) -> Iterator[tuple[FactorCase, int, Trial]]:
    """All runs, seed by seed: whenever it is stopped, all rows have about as many."""
    for seed in setup.seeds:
        for cell in cells(setup):
            yield cell, seed, trial(setup, cell, seed)
