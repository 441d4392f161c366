"""Names for what has none. That ranks come to the same ones is shown by the bodies in tests/multi that use them."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator

import pytest
import torch

import hora.torch as hvd
from hora.ops.numbering import name_of


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


def name(owner: object, kind: str = "layer") -> str:
    return name_of(owner, kind, hvd.global_process_set)


def test_kinds_count_apart_and_copies_are_others() -> None:
    layer = torch.nn.ReLU()
    assert name(layer) == name(layer) == "layer.0"
    assert name(copy.deepcopy(layer)) == "layer.1"
    assert name(torch.nn.ReLU(), "optimizer") == "optimizer.0"


def test_a_number_is_never_given_twice() -> None:
    for i in range(3):
        assert name(torch.nn.ReLU()) == f"layer.{i}"
        gc.collect()


def test_every_generation_counts_afresh() -> None:
    first, second = torch.nn.ReLU(), torch.nn.ReLU()
    assert (name(first), name(second)) == ("layer.0", "layer.1")
    hvd.shutdown()
    hvd.init()
    assert (name(second), name(first)) == ("layer.0", "layer.1")
