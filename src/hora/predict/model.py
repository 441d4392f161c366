"""A model of one training job: draws of what a step depends on, and what they say about any number of workers.

Where the draws come from is others' business: a table (``fit.py``), or measured figures (``calibration.py``).
A forecast has an interval because parameters are draws: what is not known well spreads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from hora.errors import UsageError
from hora.predict.network import Algorithm, Cluster, Link, Traffic, traffic
from hora.predict.step import Parts, expected_max, step_parts

__all__ = ["LEVEL", "Columns", "FirstBatch", "Forecast", "Interval", "Model", "Setting"]

Array = NDArray[np.float64]
Draws = dict[str, Array]
LEVEL = 0.9  # of every interval


@dataclass(frozen=True)
class Setting:
    """What is summed, and where."""

    gradient_bytes: float
    per_host: int
    algorithm: Algorithm


@dataclass(frozen=True)
class FirstBatch:
    """A first batch that sits in the average of the first ``steps``: ``seconds`` by worker count, as far as logged.

    Beyond the largest count that was logged it is taken to stay as long, give or take.
    """

    steps: int
    seconds: dict[int, float]

    def logged(self, workers: int) -> int:
        """The count whose first batch stands for that of ``workers``: the largest that is not larger.

        >>> FirstBatch(200, {1: 11.0, 2: 9.7}).logged(8)
        2
        """
        return max((n for n in self.seconds if n <= workers), default=min(self.seconds))


@dataclass(frozen=True)
class Interval:
    """A prediction: its median, and the bounds that hold it with probability ``level``.

    >>> Interval(10.0, 9.0, 12.0, 0.9).holds(11.5)
    True
    """

    middle: float
    low: float
    high: float
    level: float = LEVEL

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Forecast:
    """What a job on ``workers`` workers is expected to do. The parts of its step are medians, in seconds."""

    workers: int
    hosts: int
    step_s: Interval
    images_per_s: Interval
    efficiency: Interval
    compute_s: float
    waiting_s: float
    comm_s: float
    exposed_s: float


class Columns:
    """The formula of a step for several worker counts at once: parameters in columns, worker counts across."""

    def __init__(self, setting: Setting, workers: Sequence[int], first: FirstBatch | None = None) -> None:
        each = [traffic(Cluster(n, setting.per_host), setting.algorithm) for n in workers]
        self.traffic = Traffic(*(np.array(column, float) for column in zip(*map(astuple, each), strict=True)))
        self.waiting = np.array([expected_max(n) for n in workers])
        self.gradient_bytes = setting.gradient_bytes
        self.first = first
        if first is not None:
            logged = [first.logged(n) for n in workers]
            self.first_s = np.array([first.seconds[n] for n in logged])
            self.grown = np.array(workers) / np.array(logged)

    def parts(self, draws: Draws, compute_s: Array) -> Parts:
        """Where a steady step's time goes."""
        inside, between = Link(draws["inside"], draws["inside_latency"]), Link(draws["between"], draws["latency"])
        comm = self.traffic.seconds(self.gradient_bytes, inside, between)
        return step_parts(self.waiting, compute_s, comm, draws["exposed"], draws["jitter"])

    def step_s(self, draws: Draws, compute_s: Array) -> Array:
        """A step as averages report it: with its share of the first batch, if they count that in."""
        step = np.asarray(self.parts(draws, compute_s).step_s)
        if self.first is None:
            return step
        first_s = self.first_s * self.grown ** draws["growth"]
        return np.asarray((first_s + (self.first.steps - 1) * step) / self.first.steps)


@dataclass(frozen=True)
class Model:
    """``draws`` of each parameter, and of one worker's compute by batch size.

    The parameters: bytes/s ``inside`` and ``between`` hosts, seconds of ``inside_latency`` and ``latency`` a turn, the
    share ``exposed`` of communication, the ``jitter`` of a worker's step, the ``scatter`` of a measurement, and the
    ``growth`` of a first batch.
    """

    setting: Setting
    draws: Draws = field(repr=False)
    compute: dict[int, Array] = field(repr=False)
    first: FirstBatch | None = None

    def steady(self) -> Model:
        """The same without its first batch: what a long run does."""
        return replace(self, first=None)

    def over(self, link: Link) -> Model:
        """The same with that link between hosts."""
        known = {"between": link.bytes_per_s, "latency": link.latency_s}
        size = len(self.draws["between"])
        return replace(self, draws=self.draws | {name: np.full(size, value) for name, value in known.items()})

    def compute_s(self, batch: int) -> Array:
        """One worker's step alone. Between and beyond batch sizes that are known, along the line through two of them;
        if one is known, in proportion."""
        if batch in self.compute:
            return self.compute[batch]
        known = sorted(self.compute)
        if len(known) == 1:
            return self.compute[known[0]] * batch / known[0]
        upper = next((place for place, size in enumerate(known[1:], 1) if size > batch), len(known) - 1)
        a, b = known[upper - 1], known[upper]
        slope = (self.compute[b] - self.compute[a]) / (b - a)
        return np.maximum(self.compute[a] + slope * (batch - a), 1e-9)

    def step_s(self, batch: int, workers: int) -> Array:
        """Draws of the step time."""
        if batch < 1:
            raise UsageError(f"a batch of {batch} has no step to predict. Samples take the time. Give at least 1")
        columns = {name: draws[:, None] for name, draws in self.draws.items()}
        return Columns(self.setting, [workers], self.first).step_s(columns, self.compute_s(batch)[:, None])[:, 0]

    def images_per_s(self, batch: int, workers: int) -> Interval:
        """What a measurement would say, with its own scatter."""
        return self.forecast(batch, workers).images_per_s

    def forecast(self, batch: int, workers: int) -> Forecast:
        """The step, the speed, and the speed beside ``workers`` times that of one."""
        steps, alone = self.step_s(batch, workers), self.step_s(batch, 1)
        rng = np.random.default_rng(workers)
        noisy = steps * np.exp(self.draws["scatter"] * rng.standard_normal(len(steps)))
        columns = {name: draws[:, None] for name, draws in self.draws.items()}
        parts = Columns(self.setting, [workers]).parts(columns, self.compute_s(batch)[:, None])

        def interval(middle: Array, spread: Array) -> Interval:
            low, high = np.quantile(spread, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
            return Interval(float(np.median(middle)), float(low), float(high))

        return Forecast(
            workers=workers,
            hosts=Cluster(workers, self.setting.per_host).hosts,
            step_s=interval(steps, noisy),
            images_per_s=interval(batch * workers / steps, batch * workers / noisy),
            efficiency=interval(alone / steps, alone / steps),
            compute_s=float(np.median(parts.compute_s)),
            waiting_s=float(np.median(parts.waiting_s)),
            comm_s=float(np.median(parts.comm_s)),
            exposed_s=float(np.median(parts.exposed_s)),
        )
