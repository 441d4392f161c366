"""A median and how sure it is, from the steps of several runs; and what follows from two of them.

Two things make a figure unsure: steps differ, and so do whole runs of the same thing. The bootstrap draws both again,
first runs and then their steps, and takes the median of what it drew, a thousand times. Whatever is computed from
several figures (a ratio, a share) is computed from their draws, so that its interval has in it what theirs have. Runs
are taken by turns, and a draw takes the same turns for all: a drift of the machine does not blur what is compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

__all__ = ["LEVEL", "Draws", "Estimate", "draws_of_median", "estimate"]

LEVEL = 0.9  # of the cases, the interval holds the value
DRAWS = 1000
MOST_STEPS = 500  # drawn of a run; more would say no more

Draws = NDArray[np.float64]


class Estimate(msgspec.Struct, frozen=True):
    """A figure with its 90 % interval; nan where nothing is known."""

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan


def draws_of_median(runs: Sequence[Sequence[float]], seed: int = 0) -> Draws:
    """What the median could as well have been, a thousand times; the first is what it is. Empty if there are no steps.

    Figures that are to be compared take another ``seed`` each.

    >>> draws_of_median([[0.1, 0.1, 0.1], [0.1, 0.1]])[:3].tolist()
    [0.1, 0.1, 0.1]
    >>> draws_of_median([]).size
    0
    """
    kept = [np.asarray(run, dtype=np.float64) for run in runs if len(run)]
    if not kept:
        return np.empty(0)
    counts = np.array([len(run) for run in kept])
    padded = np.zeros((len(kept), counts.max()))
    for run, row in zip(kept, padded, strict=True):
        row[: len(run)] = run
    turns = np.random.default_rng(0).integers(len(kept), size=(DRAWS, len(kept), 1))
    spots = np.random.default_rng([1, seed]).random((DRAWS, len(kept), min(MOST_STEPS, counts.max())))
    steps = (spots * counts[turns]).astype(np.intp)
    drawn: Draws = np.median(padded[turns, steps].reshape(DRAWS, -1), axis=1)
    drawn[0] = np.median(np.concatenate(kept))
    return drawn


def estimate(draws: Draws) -> Estimate:
    """The first draw, which is the value, and the interval that holds the middle of all.

    >>> estimate(np.array([2.0, 1.0, 3.0]))
    Estimate(value=2.0, low=1.1, high=2.9)
    >>> estimate(np.empty(0))
    Estimate(value=nan, low=nan, high=nan)
    """
    if not draws.size:
        return Estimate()
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(float(draws[0]), round(float(low), 12), round(float(high), 12))
