"""OneBit's own: the bits."""

from __future__ import annotations

import pytest
import torch

from hora.torch.compression import OneBit
from hora.torch.compression.one_bit import pack, unpack


@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 1000, 1001])
def test_bits_come_back(count: int) -> None:
    bits = torch.rand(count, generator=torch.Generator().manual_seed(count)) < 0.5
    assert len(pack(bits)) == -(-count // 8)
    assert torch.equal(unpack(pack(bits), count), bits)


def test_signs_with_the_mean_magnitude() -> None:
    compressor = OneBit(smallest=1)
    assert compressor.start("w", torch.tensor([1.0, -2.0, 0.0, 5.0]))().tolist() == [2, -2, 2, 2]
    assert compressor.start("w", torch.tensor([0.0, 0.0, 0.0, 0.0]))().tolist() == [-1.5, 1.5, -1.5, 1.5]
