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


def optimizer() -> tuple[torch.nn.Linear, torch.optim.Optimizer]:
    model = torch.nn.Linear(2, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def test_names_must_be_unique() -> None:
    model, plain = optimizer()
    with pytest.raises(ValueError, match="Found duplicates: a"):
        DistributedAdasumOptimizer(plain, [("a", p) for p in model.parameters()])


def test_names_must_cover_all() -> None:
    model, plain = optimizer()
    with pytest.raises(ValueError, match="1 of the optimizer's are missing"):
        DistributedAdasumOptimizer(plain, [("weight", model.weight)])


def test_names_must_be_pairs() -> None:
    model, plain = optimizer()
    with pytest.raises(ValueError, match="sequence of tuples"):
        DistributedAdasumOptimizer(plain, model.parameters())  # type: ignore[arg-type]


def test_passes_must_be_positive() -> None:
    with pytest.raises(ValueError, match="backward_passes_per_step=0"):
        DistributedAdasumOptimizer(optimizer()[1], backward_passes_per_step=0)


def test_compression_with_memory_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Use Compression\.none"):
        DistributedAdasumOptimizer(optimizer()[1], compression=hvd.Compression.one_bit())  # type: ignore[arg-type]
