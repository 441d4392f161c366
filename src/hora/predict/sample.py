"""Samples from a density that is known up to a factor: many walkers, each moving along the line to another.

The stretch move of Goodman and Weare (2010), which needs no tuning and no derivatives, in numpy. The same seed gives
the same samples.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["sample"]

Array = NDArray[np.float64]


def sample(
    log_density: Callable[[Array], Array], start: Array, *, steps: int, burn: int, every: int, seed: int
) -> Array:
    """Samples as rows. ``start`` has a row a walker, an even number of them; ``log_density`` takes rows.

    >>> rng = np.random.default_rng(0)
    >>> found = sample(lambda x: -0.5 * ((x[:, 0] - 3) / 2) ** 2, rng.normal(size=(64, 1)),
    ...                steps=1000, burn=200, every=5, seed=1)
    >>> found.shape, bool(abs(found.mean() - 3) < 0.1), bool(abs(found.std() - 2) < 0.1)
    ((10240, 1), True, True)
    """
    rng = np.random.default_rng(seed)
    walkers, dimensions = start.shape
    half = walkers // 2
    at = start.copy()
    density = log_density(at)
    kept: list[Array] = []
    for step in range(steps):
        for mine, theirs in ((slice(0, half), slice(half, None)), (slice(half, None), slice(0, half))):
            stretch = (1 + rng.random(half)) ** 2 / 2  # z in [1/2, 2], density proportional to 1/sqrt(z)
            other = at[theirs][rng.integers(half, size=half)]
            proposed = other + stretch[:, None] * (at[mine] - other)
            there = log_density(proposed)
            accepted = np.log(rng.random(half)) < (dimensions - 1) * np.log(stretch) + there - density[mine]
            at[mine] = np.where(accepted[:, None], proposed, at[mine])
            density[mine] = np.where(accepted, there, density[mine])
        if step >= burn and (step - burn) % every == 0:
            kept.append(at.copy())
    return np.concatenate(kept)
