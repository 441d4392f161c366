"""Sums in the order of workers: the same bits whoever adds them up, against a tree that numpy makes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hora.torch as hvd
from hora.workloads import ordered
from hora.workloads.ordered import OrderedSum, shares


def tree(rows: list[np.ndarray]) -> np.ndarray:
    """The sum of all rows as the module's docstring has it: of whole blocks, the largest first."""
    if len(rows) == 1:
        return rows[0]
    half = 1 << ((len(rows) - 1).bit_length() - 1)
    return tree(rows[:half]) + tree(rows[half:])


@pytest.mark.parametrize("total", [1, 2, 3, 4, 5, 7, 8, 13])
def test_any_partition_gives_the_bits_of_the_tree(total: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(total)
    rows = [(random.standard_normal(11) * 10.0 ** random.integers(-6, 6, 11)).astype(np.float32) for _ in range(total)]
    expected = tree(rows)
    for size in range(1, total + 1):
        assert [w for share in shares(total, size) for w in share] == list(range(total))
        assert all(len(share) for share in shares(total, size))
        assert simulated(rows, total, size, monkeypatch) == [expected.tobytes()] * size


def simulated(rows: list[np.ndarray], total: int, size: int, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What ``size`` processes find, played one after the other: each collective is done when all have sent to it."""
    if size == 1:
        monkeypatch.setattr(hvd, "rank", lambda: 0)
        monkeypatch.setattr(hvd, "size", lambda: 1)
        return [summed(rows, total, range(total)).numpy().tobytes()]
    monkeypatch.setattr(hvd, "size", lambda: size)
    sent: dict[int, list[torch.Tensor]] = {}
    slices: dict[int, torch.Tensor] = {}

    class Enough(Exception):
        pass

    def first(tensor: torch.Tensor, splits: torch.Tensor, name: str) -> None:
        sent[hvd.rank()] = list(tensor.clone().split(splits.tolist()))
        raise Enough

    def second(tensor: torch.Tensor, splits: torch.Tensor, name: str) -> tuple[torch.Tensor, None]:
        return torch.cat([sent[other][hvd.rank()] for other in range(size)]), None

    def keep(tensor: torch.Tensor, name: str) -> torch.Tensor:
        slices[hvd.rank()] = tensor.clone()
        return tensor

    monkeypatch.setattr(ordered.hvd, "allgather", keep)
    for exchange in (first, second):
        monkeypatch.setattr(ordered.hvd, "alltoall", exchange)
        for rank in range(size):
            monkeypatch.setattr(hvd, "rank", lambda rank=rank: rank)
            try:
                summed(rows, total, shares(total, size)[rank])
            except Enough:
                continue
    return [torch.cat([slices[rank] for rank in range(size)]).numpy().tobytes()] * size


def summed(rows: list[np.ndarray], total: int, mine: range) -> torch.Tensor:
    made = OrderedSum(total)
    for worker in mine:
        made.add(worker, torch.from_numpy(rows[worker].copy()))
    return made.result()
