"""What a sparse gradient costs. What comes out is in tests/multi/bodies/allreduce.py and optimizer_uneven.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import hora.torch as hvd
from hora.torch import sparse, submit


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


def test_rows_that_come_often_are_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that uses a few words again and again must not blow up what all ranks gather."""
    sent: list[torch.Tensor] = []
    start = submit.start

    def watched(call: Any, tensors: list[torch.Tensor]) -> Any:
        sent.extend(tensors)
        return start(call, tensors)

    monkeypatch.setattr(sparse.submit, "start", watched)
    embedding = torch.nn.Embedding(1000, 16, sparse=True)
    words = torch.tensor([3, 7, 3, 3, 999] * 200)
    embedding(words).sum().backward()
    gradient = embedding.weight.grad
    assert gradient is not None and gradient._nnz() == 1000
    total = hvd.sparse_allreduce_async(gradient, name="words")()
    indices, values, _ = sent
    assert indices.flatten().tolist() == [3, 7, 999] and values.shape == (3, 16)
    assert torch.equal(total.to_dense(), gradient.to_dense())


def test_a_gradient_of_nothing_is_sent() -> None:
    nothing = torch.sparse_coo_tensor(
        torch.zeros((1, 0), dtype=torch.int64), torch.zeros((0, 4)), (10, 4), check_invariants=True
    )
    assert hvd.sparse_allreduce_async(nothing, name="nothing")()._nnz() == 0
