"""The runs of a quality experiment: every factor on every number of workers with every seed, and one worker.

More workers than there are cores are emulated (``emulate_workers``), on as many processes as divide them evenly. One
worker is the baseline of all factors, and runs once a seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from hora.lab.quality.factors import BASELINE, Factor, Recipe
from hora.lab.trial import Trial

__all__ = ["Cell", "Setup", "cells", "processes_for", "saving", "trial", "trials"]


class Cell(NamedTuple):
    """A row of the table: one factor on so many workers."""

    factor: Factor
    workers: int


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """All of a quality experiment."""

    recipe: Recipe
    workers: tuple[int, ...]
    factors: tuple[Factor, ...]
    seeds: tuple[int, ...]
    processes: int  # at most
    threads: int | None = None
    keep_models: bool = False
    timeout_s: float = 24 * 3600.0


def processes_for(workers: int, most: int) -> int:
    """As many as may be, each playing as many workers.

    >>> [processes_for(workers, 2) for workers in (1, 2, 3, 8)], processes_for(24, 16)
    ([1, 2, 1, 2], 12)
    """
    return max(part for part in range(1, min(workers, most) + 1) if workers % part == 0)


def saving(keep_models: bool) -> dict[str, Any]:
    """Options of runs whose metrics are wanted, and perhaps what they end with."""
    return {"save_every": 0, "keep": 1} if keep_models else {"save": False}


def cells(setup: Setup) -> list[Cell]:
    """The rows: one worker, then factor by factor. With fewer workers than a batch is divided by there is no row.

    >>> from hora.lab.quality.factors import parse_factors
    >>> recipe = Recipe.of("mnist", {}, 1)
    >>> two = parse_factors("naive,reduced-batch")
    >>> some = Setup(recipe=recipe, workers=(1, 2, 8), factors=two, seeds=(1,), processes=2)
    >>> [(cell.factor.name, cell.workers) for cell in cells(some)]
    [('baseline', 1), ('naive', 2), ('naive', 8), ('reduced-batch', 8)]
    """
    many = [workers for workers in setup.workers if workers > 1]
    return [
        Cell(BASELINE, 1),
        *(Cell(factor, workers) for factor in setup.factors for workers in many if workers >= factor.parts),
    ]


def trial(setup: Setup, cell: Cell, seed: int) -> Trial:
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
        timeout_s=setup.timeout_s,
    )


def trials(setup: Setup) -> Iterator[tuple[Cell, int, Trial]]:
    """All runs, seed by seed: whenever it is stopped, all rows have about as many."""
    for seed in setup.seeds:
        for cell in cells(setup):
            yield cell, seed, trial(setup, cell, seed)
