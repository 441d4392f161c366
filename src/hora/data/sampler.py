"""Which samples a worker takes: one shuffle an epoch, the same on all workers, partitioned over them, resumable.

Counts samples of the whole job, so that a run resumed in the middle of an epoch, even on another number of workers,
sees each remaining sample once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from hora.errors import UsageError

__all__ = ["Sampler"]


class Sampler:
    """Gives this worker's share of each epoch, as a torch sampler does; also its batches.

    ``uneven`` says what to do when the samples cannot be divided evenly: "wrap" repeats the first ones so that all
    workers have the same number, as DistributedSampler does; "drop" leaves the last ones out; "keep" lets some workers
    have one fewer, for exact evaluation.

    >>> one, other = (Sampler(7, rank=rank, size=2, shuffle=False) for rank in (0, 1))
    >>> list(one), list(other)
    ([0, 2, 4, 6], [1, 3, 5, 0])
    >>> [list(Sampler(7, rank=rank, size=2, shuffle=False, uneven="keep")) for rank in (0, 1)]
    [[0, 2, 4, 6], [1, 3, 5]]
    """

    def __init__(
        self, samples: int, *, rank: int = 0, size: int = 1, shuffle: bool = True, seed: int = 0, uneven: str = "wrap"
    ) -> None:
        if not 0 <= rank < size:
            raise UsageError(f"rank {rank} is not among {size} workers.")
        if samples < 1:
            raise UsageError("there are no samples to take: the data set is empty.")
        if uneven not in ("wrap", "drop", "keep"):
            raise UsageError(f"uneven={uneven!r} is not known. Use 'wrap', 'drop' or 'keep'.")
        if uneven == "drop" and samples < size:
            raise UsageError(
                f"{samples} samples cannot be divided among {size} workers without leaving all of them out."
            )
        self._samples, self._rank, self._size = samples, rank, size
        self._shuffle, self._seed, self._uneven = shuffle, seed, uneven
        self.epoch = 0
        self.seen = 0  # samples of this epoch that all workers together have done with

    def set_epoch(self, epoch: int, seen: int = 0) -> None:
        """Begin an epoch, or continue in the middle of it after ``seen`` samples of all workers together."""
        if not 0 <= seen <= self._samples:
            raise UsageError(f"{seen} samples cannot have been seen of an epoch of {self._samples}.")
        self.epoch, self.seen = epoch, seen

    def __len__(self) -> int:
        left = self._samples - self.seen
        match self._uneven:
            case "wrap":
                return -(-left // self._size)
            case "drop":
                return left // self._size
        return len(range(self._rank, left, self._size))

    def __iter__(self) -> Iterator[int]:
        return iter(self._mine().tolist())

    def _mine(self) -> npt.NDArray[np.int64]:
        left = self.order()[self.seen :]
        if self._uneven == "wrap" and len(left):
            left = np.resize(left, len(self) * self._size)
        elif self._uneven == "drop":
            left = left[: len(self) * self._size]
        return left[self._rank :: self._size]

    def order(self) -> npt.NDArray[np.int64]:
        """The order of the whole epoch, the same on all workers."""
        if not self._shuffle:
            return np.arange(self._samples, dtype=np.int64)
        return np.random.default_rng([self._seed, self.epoch]).permutation(self._samples).astype(np.int64)

    def advance(self, samples: int) -> None:
        """Note that all workers together have done with that many more samples of this epoch."""
        self.seen = min(self._samples, self.seen + samples)

    def state_dict(self) -> dict[str, Any]:
        """Where it is, for a checkpoint; the same on all workers."""
        return {"epoch": self.epoch, "seen": self.seen, "seed": self._seed, "samples": self._samples}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from there, on any number of workers."""
        if state["samples"] != self._samples:
            raise UsageError(
                f"the checkpoint is of a data set of {state['samples']} samples, this one has {self._samples}, so its "
                "position means nothing here. Use the same data, or begin the epoch anew with set_epoch."
            )
        self._seed = state["seed"]
        self.set_epoch(state["epoch"], state["seen"])
