"""A sampler that shares an epoch out among the workers there are, and knows which of its samples are done."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Sampler

from hora.elastic.order import share, taken
from hora.engine import session

__all__ = ["ElasticSampler"]


class ElasticSampler(Sampler[int]):
    """Every sample of an epoch once, among however many workers there are, also if they change in the middle of it.

    Put it into a ``TorchState``, tell it with ``record_batch`` after each step what was done, and call ``set_epoch`` at
    the end of each epoch. When the workers have changed, what is left is shared out anew.

    Args:
        dataset: What has a length.
        shuffle: Whether to shuffle, another way each epoch but the same way on all workers.
        seed: For the shuffle; the same on all workers.

    >>> session.init()
    >>> sampler = ElasticSampler(range(5), shuffle=False)
    >>> sampler.record_batch(0, 2); sampler.reset(); list(sampler)
    [2, 3, 4]
    >>> session.shutdown()
    """

    def __init__(self, dataset: Any, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = self.processed_num = 0
        self.num_replicas, self.rank = 1, 0
        self.remaining_indices: list[int] = []
        self.num_samples = self.total_size = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin another epoch: call it at the **end** of one, so that one that was broken off is not begun anew."""
        self.epoch, self.processed_num = epoch, 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Every worker has taken ``batch_size`` samples more; call it after the step, before the commit."""
        self.record_indices(batch_size)

    def record_indices(self, count: int) -> None:
        """Every worker has taken ``count`` samples more."""
        self.processed_num = taken(self.processed_num, count, self.num_replicas, len(self.dataset))

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """The samples of this worker's batch of that number, since the workers last changed."""
        start = batch_idx * batch_size
        return self.indices[start : min(start + batch_size, len(self.indices))]

    def reset(self) -> None:
        """The workers have changed, or an epoch begins: share out what is left."""
        self.num_replicas, self.rank = session.size(), session.rank()
        total = len(self.dataset)
        if self.shuffle:
            generator = torch.Generator("cpu").manual_seed(self.seed + self.epoch)
            order = torch.randperm(total, generator=generator, device="cpu").tolist()
        else:
            order = list(range(total))
        self.remaining_indices = order[self.processed_num :]
        self.indices = share(self.remaining_indices, self.rank, self.num_replicas)
        self.num_samples, self.total_size = len(self.indices), len(self.indices) * self.num_replicas

    def state_dict(self) -> dict[str, int]:
        """Where the epoch is."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Go on from there."""
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return self.num_samples
