"""What the Adasum optimizer refuses. What it computes is in tests/multi/bodies/adasum_optimizer.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import hora.torch as hvd
from hora.torch.adasum import DistributedAdasumOptimizer


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)


def test_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="combined twice"):
        DistributedAdasumOptimizer(DistributedAdasumOptimizer(optimizer()))


def test_passes_must_be_positive() -> None:
    with pytest.raises(ValueError, match="backward_passes_per_step=0"):
        DistributedAdasumOptimizer(optimizer(), backward_passes_per_step=0)


def test_compression_with_memory_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Use Compression\.none"):
        DistributedAdasumOptimizer(optimizer(), compression=hvd.Compression.one_bit())  # type: ignore[arg-type]
