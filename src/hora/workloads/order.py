"""Which samples each worker takes, at which step: a pure function of seed, epoch and position. And where a run is.

One shuffle an epoch, the same on all ranks (``hora.data.sampler``), dealt out like cards: of every step's samples,
worker v of V takes those at v, V + v, 2V + v and so on. So it does not matter which process plays which worker, nor
whether the run was interrupted; and one that continues with another number of workers sees each remaining sample once.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np

from hora.data.loader import BatchPlan
from hora.data.sampler import Sampler
from hora.errors import UsageError
from hora.workloads.options import WorkloadOptions

__all__ = ["SampleOrder", "random_seed", "worker_seed"]

_WORKERS = 0x57  # sets the workers' streams of random numbers apart from others of the same seed


def random_seed(*numbers: int) -> int:
    """A seed for a stream of random numbers of its own, for instance of (seed, epoch, sample).

    >>> random_seed(42, 0) != random_seed(42, 1) != random_seed(43, 0)
    True
    """
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]) >> 1  # torch takes 63 bits


def worker_seed(seed: int, rank: int, *more: int) -> int:
    """A seed for the random numbers that a worker computes with, such as those of dropout.

    >>> worker_seed(42, 0) != worker_seed(42, 1)
    True
    """
    return random_seed(seed, _WORKERS, rank, *more)


class SampleOrder:
    """The order of a run over ``samples`` samples by ``workers`` workers, and where it is.

    ``epoch`` and ``seen`` are the place: samples of this epoch that all workers together have done with. ``step`` and
    ``samples_seen`` count over the whole run.

    >>> order = SampleOrder(10, 2, WorkloadOptions(batch=2, epochs=1.5))
    >>> order.steps_per_epoch, order.steps_left
    (2, 2)
    >>> mine = [plan.indices for plan in order.plans(range(0, 1))]
    >>> [len(indices) for indices in mine]
    [2, 2]
    >>> order.advance()
    >>> order.seen, order.steps_left, (order.plans(range(0, 1))[0].indices == mine[1]).all()
    (4, 1, np.True_)
    >>> order.begin(1)
    >>> order.steps_left      # half an epoch
    1
    """

    def __init__(self, samples: int, workers: int, options: WorkloadOptions) -> None:
        batch, parts = options.batch, options.accumulate
        whole = batch * parts * workers
        if whole > (samples if options.last == "drop" else -(-samples // workers) * workers):
            times = f" x {parts} accumulated" if parts > 1 else ""
            raise UsageError(
                f"a batch of {batch}{times} for each of {workers} workers is more than there is: of {samples} samples "
                f"each has {samples // workers}, so there would be no whole step. Take a smaller --batch, or fewer "
                "workers."
            )
        self._sampler = Sampler(samples, seed=options.seed)
        self._samples, self._workers, self._batch, self._parts = samples, workers, batch, parts
        self._keep, self._epochs, self._most_steps = options.last == "keep", options.epochs, options.max_steps
        self.step = self.samples_seen = 0

    # ---- where it is ----

    @property
    def epoch(self) -> int:
        return self._sampler.epoch

    @property
    def seen(self) -> int:
        return self._sampler.seen

    @property
    def position(self) -> float:
        """How far the run is, in epochs."""
        whole = self._samples if self._keep else self.steps_per_epoch * self.step_samples
        return self.epoch + min(1.0, self.seen / whole)

    @property
    def epoch_ended(self) -> bool:
        return not self._steps(self._samples - self.seen)

    @property
    def epoch_step(self) -> int:
        """Steps done of this epoch."""
        return self.steps_per_epoch - self._steps(self._samples - self.seen)

    # ---- how much there is ----

    @property
    def step_samples(self) -> int:
        """Samples of a whole step, of all workers."""
        return self._batch * self._workers * self._parts

    @property
    def next_samples(self) -> int:
        """Samples of the next step: fewer if it is the last, which is filled up so that all workers have as many."""
        together = self._workers * self._parts
        return min(self.step_samples, -(-(self._samples - self.seen) // together) * together)

    @property
    def steps_per_epoch(self) -> int:
        return self._steps(self._samples)

    @property
    def steps_left(self) -> int:
        """Steps of this epoch that are still to be done in this run."""
        left = min(self._steps(self._samples - self.seen), self._steps_in(self.epoch) - self.epoch_step)
        return max(0, min(left, self._most_steps - self.step) if self._most_steps else left)

    def _steps(self, samples: int) -> int:
        return -(-samples // self.step_samples) if self._keep else samples // self.step_samples

    def _steps_in(self, epoch: int) -> int:
        """Steps of an epoch that belong to the run: all, or fewer of a last one that is incomplete."""
        share = min(1.0, self._epochs - epoch)
        return max(1, round(share * self.steps_per_epoch)) if share > 0 else 0

    # ---- continuing ----

    def advance(self) -> None:
        """A step is done."""
        samples = self.next_samples
        self._sampler.advance(samples)
        self.step += 1
        self.samples_seen += samples

    def end_here(self) -> None:
        """No step is left of this run."""
        self._most_steps = self.step

    def begin(self, epoch: int) -> None:
        """Go to the start of an epoch."""
        self._sampler.set_epoch(epoch)

    def plans(self, workers: range, epoch: int | None = None) -> list[BatchPlan]:
        """The batches of these workers that are left of this epoch: step by step, in each step worker by worker. Or all
        of another epoch."""
        ahead = copy.copy(self)
        ahead._sampler = copy.copy(self._sampler)
        if epoch is not None and epoch != self.epoch:
            ahead.begin(epoch)
        return list(ahead._walk(workers))

    def _walk(self, workers: range) -> Iterator[BatchPlan]:
        order = self._sampler.order()
        for _ in range(self.steps_left):
            places = np.arange(self.seen, self.seen + self.next_samples) % self._samples
            dealt = order[places].reshape(self._parts, -1, self._workers)
            first = self.seen // (self._batch * self._workers)  # how many batches each worker has had
            for worker in workers:
                for part in range(self._parts):
                    yield BatchPlan(dealt[part, :, worker], self.epoch, worker, first + part)
            self.advance()

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "samples_seen": self.samples_seen, "sampler": self._sampler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sampler.load_state_dict(state["sampler"])
        self.step, self.samples_seen = state["step"], state["samples_seen"]
