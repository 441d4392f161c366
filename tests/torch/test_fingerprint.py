"""Fingerprints: equal for equal bits, different for all others that happen."""

from __future__ import annotations

import random

import pytest
import torch

from hora.torch.fingerprint import combined, explain, fingerprints

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.int64, torch.bool]


def of(tensor: torch.Tensor) -> int:
    return fingerprints([tensor])[0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (8,), (5, 7), (1000, 9), (3, 0)])
def test_copies_are_equal_whatever_their_place_in_memory(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    tensor = (torch.rand(shape) * 100).to(dtype)
    room = torch.zeros(tensor.numel() + 3, dtype=dtype)
    moved = room[3:].view(shape)
    moved.copy_(tensor)
    assert of(tensor) == of(moved) == of(tensor.clone())


def test_order_in_memory_does_not_matter_and_order_in_the_tensor_does() -> None:
    tensor = torch.rand(2, 3, 4, 5)
    assert of(tensor) == of(tensor.contiguous(memory_format=torch.channels_last))
    assert of(tensor) != of(tensor.transpose(0, 1))


def test_every_flipped_bit_shows() -> None:
    chance = random.Random(0)
    tensor = torch.randn(40_003)
    bits, before = tensor.view(torch.int32), of(tensor)
    for _ in range(500):
        place, bit = chance.randrange(len(bits)), chance.randrange(32)
        flip = -(1 << 31) if bit == 31 else 1 << bit
        bits[place] ^= flip
        assert of(tensor) != before, (place, bit)
        bits[place] ^= flip
    assert of(tensor) == before


def test_small_opposite_changes_do_not_cancel() -> None:
    tensor = torch.ones(100)
    other = tensor.clone()
    other[10], other[20] = torch.nextafter(tensor[:2], torch.tensor([2.0, 0.0]))
    assert of(tensor) != of(other)


def test_combined_is_sensitive_to_each_and_fits_into_64_bits() -> None:
    each = fingerprints([torch.rand(10) for _ in range(50)])
    whole = combined(each)
    torch.tensor([whole, ~whole])  # would raise
    for i in range(50):
        assert combined([*each[:i], each[i] ^ (1 << 40), *each[i + 1 :]]) != whole


def test_the_minority_is_named() -> None:
    text = explain(200, ["a", "b", "c"], {0: [1, 2, 3], 1: [1, 2, 3], 2: [1, 9, 8], 3: [1, 2, 3]})
    assert "rank 2 differ from those of ranks 0, 1, 3, first in b (2 of 3 parameters)" in text


def test_two_ranks_are_both_named() -> None:
    text = explain(200, ["a", "b"], {0: [1, 2], 1: [7, 2]})
    assert "differ between rank 0 and rank 1, first in a (1 of 2 parameters)" in text


def test_no_majority() -> None:
    text = explain(200, ["a"], {0: [1], 1: [1], 2: [2], 3: [2]})
    assert "differ between ranks 0, 1 and ranks 2, 3, first in a" in text


def test_after_the_first_step_it_was_the_broadcast() -> None:
    assert "hvd.broadcast_parameters" in explain(1, ["a"], {0: [1], 1: [2]})


def test_a_rank_that_has_joined_has_no_say() -> None:
    assert "between rank 0 and rank 2" in explain(5, ["a"], {0: [1], 1: [], 2: [2]})


def test_another_number_of_parameters() -> None:
    assert "in b (1 of 2" in explain(5, ["a", "b"], {0: [1, 2], 1: [1]})
    assert "in their number (0 of 1" in explain(5, ["a"], {0: [1, 2], 1: [1]})
