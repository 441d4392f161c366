"""Numbers about training: accuracies, means weighted by samples, and their reduction over workers."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt
from torch import Tensor

from hora.engine import session
from hora.ops.objects import allgather_object

__all__ = ["Means", "Sums", "accuracy", "checksum", "shard"]

Sums = dict[str, tuple[float, int]]  # of each metric: over samples, and how many


def accuracy(scores: Tensor, labels: Tensor, k: int = 1) -> Tensor:
    """The share of samples whose label is among the k highest scores.

    >>> import torch
    >>> scores = torch.tensor([[0.1, 0.9, 0.0], [0.5, 0.2, 0.3]])
    >>> accuracy(scores, torch.tensor([1, 2])), accuracy(scores, torch.tensor([1, 2]), k=2)
    (tensor(0.5000), tensor(1.))
    """
    if k == 1:
        return (scores.detach().argmax(1) == labels).float().mean()
    found = scores.detach().topk(k, 1).indices == labels[:, None]
    return found.any(1).float().mean()


def checksum(tensor: Tensor) -> int:
    """A number by which ranks find out that their data is not the same.

    >>> import torch
    >>> checksum(torch.tensor([1, 2])) == checksum(torch.tensor([2, 1]))
    False
    """
    return zlib.crc32(tensor.contiguous().numpy().tobytes())


def shard(
    samples: int, batch: int, ranks: Iterable[int] | None = None, total: int = 0
) -> Iterator[npt.NDArray[np.int64]]:
    """This rank's part of a validation set, batch by batch: every sample is some rank's, and of one only. Or the parts
    of these of ``total`` ranks.

    >>> session.init()
    >>> [indices.tolist() for indices in shard(5, 2)]
    [[0, 1], [2, 3], [4]]
    >>> session.shutdown()
    """
    for rank in [session.rank()] if ranks is None else ranks:
        mine = np.arange(rank, samples, total or session.size())
        for start in range(0, len(mine), batch):
            yield mine[start : start + batch]


class Means:
    """Means over samples, exact also when batches differ in size.

    >>> import torch
    >>> means = Means()
    >>> means.add(3, {"loss": 1.0})
    >>> means.add(1, {"loss": torch.tensor(5.0)})
    >>> means.settle()
    >>> means.local()
    {'loss': 2.0}

    ``replicated``: every process adds what all workers had, so nothing needs to be gathered.
    """

    def __init__(self, replicated: bool = False) -> None:
        self._replicated = replicated
        self._sums: Sums = {}
        self._pending: list[tuple[int, Mapping[str, Tensor | float]]] = []

    def add(self, samples: int, values: Mapping[str, Tensor | float]) -> None:
        """Note the means of a batch. Tensors are looked at in ``settle``, which may have to wait for a device."""
        self._pending.append((samples, values))

    def settle(self) -> None:
        """Take what was added into account."""
        for samples, values in self._pending:
            for name, value in values.items():
                total, count = self._sums.get(name, (0.0, 0))
                self._sums[name] = total + samples * float(value), count + samples
        self._pending.clear()

    def take(self, other: Means) -> None:
        """Take over everything from another one, which then has nothing."""
        self.add_sums(other.sums())
        other.clear()

    def add_sums(self, sums: Sums) -> None:
        """Note what was added up elsewhere."""
        for name, (total, count) in sums.items():
            before, samples = self._sums.get(name, (0.0, 0))
            self._sums[name] = before + total, samples + count

    def sums(self) -> Sums:
        """(sum, samples) of everything that this process added."""
        self.settle()
        return dict(self._sums)

    def local(self) -> dict[str, float]:
        """The means of what this process added."""
        self.settle()
        return {name: total / count for name, (total, count) in self._sums.items()}

    def reduced(self) -> dict[str, float]:
        """The means over all workers, also if some have added nothing; all ranks call it together."""
        return {name: total / count for name, (total, count) in self.state().items()}

    def clear(self) -> None:
        self._sums.clear()
        self._pending.clear()

    def state(self) -> Sums:
        """(sum, samples) of everything, over all workers; all ranks call it together."""
        self.settle()
        if self._replicated:
            return self.sums()
        everything = Means()
        for sums in allgather_object(self._sums, name="hora.means"):
            everything.add_sums(sums)
        return everything.sums()

    def load_state(self, state: Mapping[str, tuple[float, int]]) -> None:
        """Continue from there: rank 0 carries what all had."""
        self.clear()
        carries = self._replicated or session.rank() == 0
        self._sums = {name: (total, int(count)) for name, (total, count) in state.items() if carries}
