"""The step model fitted to a table of throughputs: what is known beforehand, what the rows say, and how sure that is.

A table has rows of one framework: batch size, workers, images/s. Batch sizes differ in their compute alone; the
network, the jitter and the share of communication that is not hidden are one for all of them. What is known beforehand
stands in ``Priors``, each with its reason. The posterior is sampled (``sample.py``), so that a prediction comes with an
interval that holds both what the rows leave open and how much a row itself scatters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from hora.errors import BadData
from hora.predict.model import Columns, FirstBatch, Model, Setting
from hora.predict.network import Algorithm
from hora.predict.sample import sample

__all__ = ["FitRow", "Priors", "fit"]

Array = NDArray[np.float64]
WALKERS, STEPS, BURN, EVERY = 128, 2000, 500, 25
NAMES = ("inside", "between", "latency", "exposed", "jitter", "scatter", "growth")
LOGARITHMS = {"inside", "between", "latency", "scatter"}


class FitRow(msgspec.Struct, frozen=True):
    """A measurement: ``workers`` workers took ``batch`` samples each a step, ``images_per_s`` together.

    >>> FitRow(128, 8, 1280.0).step_s
    0.8
    """

    batch: int
    workers: int
    images_per_s: float

    @property
    def step_s(self) -> float:
        return self.batch * self.workers / self.images_per_s


class Priors(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known before a row is read. (centre, factor) is log-normal: two thirds lie within the factor."""

    gradient_bytes: float = 102e6  # ResNet-50 in float32
    per_host: int = 4
    algorithm: Algorithm = "ring"  # NCCL before 2.4, Horovod's default: one ring through all workers
    inside_bytes_per_s: tuple[float, float] = (10e9, 1.5)  # PCI Express 3.0 x16 has 12 to 13 GB/s at best
    between_bytes_per_s: tuple[float, float] = (5e9, 1.5)  # FDR InfiniBand has 6.8 GB/s at best
    latency_s: tuple[float, float] = (1e-4, 2.0)  # a turn of the ring: about five buckets of about 20 us each
    jitter: float = 0.02  # half-normal: a worker's steps scatter by a few per cent
    scatter: tuple[float, float] = (0.017, 1.5)  # run to run: the study had 0.618 s and 0.633 s of the same run
    first_batch_growth: float = 0.1  # normal, around 0: exponent of the first batch over workers


def fit(
    rows: Sequence[FitRow], *, priors: Priors | None = None, first: FirstBatch | None = None, seed: int = 1
) -> Model:
    """Fit the model to the rows of one framework. One worker's row determines compute best.

    >>> rows = [FitRow(32, 1, 320.0), FitRow(32, 2, 600.0), FitRow(32, 4, 1200.0), FitRow(32, 8, 2300.0)]
    >>> found = fit(rows).images_per_s(32, 16)
    >>> found.holds(4500.0), 0.8 < found.middle / (16 * 320) < 1
    (True, True)
    """
    priors = priors or Priors()
    if not rows or any(row.images_per_s <= 0 or row.workers < 1 or row.batch < 1 for row in rows):
        raise BadData(
            f"a table of {len(rows)} rows, or one that has a figure of 0 or less. There is nothing to fit. "
            "Give at least one row, each with batch, workers and images_per_s above 0"
        )
    batches = sorted({row.batch for row in rows})
    setting = Setting(priors.gradient_bytes, priors.per_host, priors.algorithm)
    columns = Columns(setting, [row.workers for row in rows], first)
    batch_of = np.array([len(NAMES) + batches.index(row.batch) for row in rows])
    measured = np.log([row.step_s for row in rows])

    def log_density(x: Array) -> Array:
        inside, between, latency, exposed, jitter, scatter, growth = x[:, : len(NAMES)].T
        total = _normal(inside, priors.inside_bytes_per_s) + _normal(between, priors.between_bytes_per_s)
        total += _normal(latency, priors.latency_s) + _normal(scatter, priors.scatter)
        total += -0.5 * (jitter / priors.jitter) ** 2 - 0.5 * (growth / priors.first_batch_growth) ** 2
        draws = _draws(x)
        step = np.maximum(columns.step_s(draws, np.exp(x[:, batch_of])), 1e-12)
        total += (-0.5 * ((measured - np.log(step)) / draws["scatter"]) ** 2).sum(axis=1) - len(rows) * scatter
        return np.where((exposed >= 0) & (exposed <= 1) & (jitter >= 0), total, -np.inf)

    found = sample(log_density, _start(rows, batches, priors, seed), steps=STEPS, burn=BURN, every=EVERY, seed=seed)
    compute = {batch: np.exp(found[:, len(NAMES) + place]) for place, batch in enumerate(batches)}
    return Model(setting, {name: draws[:, 0] for name, draws in _draws(found).items()}, compute, first)


def _draws(x: Array) -> dict[str, Array]:
    """Columns of parameters, of which some are sampled as logarithms. One latency serves inside and between."""
    columns = {name: x[:, place, None] for place, name in enumerate(NAMES)}
    found = {name: np.exp(column) if name in LOGARITHMS else column for name, column in columns.items()}
    return found | {"inside_latency": found["latency"]}


def _normal(log_value: Array, prior: tuple[float, float]) -> Array:
    centre, factor = prior
    return np.asarray(-0.5 * ((log_value - math.log(centre)) / math.log(factor)) ** 2)


def _start(rows: Sequence[FitRow], batches: Sequence[int], priors: Priors, seed: int) -> Array:
    """Walkers spread as the priors are, and as the fastest row of each batch size says."""
    rng = np.random.default_rng(seed + 1)

    def spread(prior: tuple[float, float]) -> Array:
        return math.log(prior[0]) + math.log(prior[1]) * rng.standard_normal(WALKERS)

    fastest = [min(row.step_s for row in rows if row.batch == batch) for batch in batches]
    columns = [
        spread(priors.inside_bytes_per_s), spread(priors.between_bytes_per_s), spread(priors.latency_s),
        rng.random(WALKERS), np.abs(priors.jitter * rng.standard_normal(WALKERS)), spread(priors.scatter),
        priors.first_batch_growth * rng.standard_normal(WALKERS),
    ]  # fmt: skip
    return np.stack([*columns, *(spread((0.95 * step, 1.05)) for step in fastest)], axis=1)
