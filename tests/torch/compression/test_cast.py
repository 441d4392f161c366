"""Casts change what is sent and nothing else."""

from __future__ import annotations

import pytest
import torch

from hora.torch.compression import Compression, Compressor


@pytest.mark.parametrize(
    ("compression", "half"), [(Compression.fp16, torch.float16), (Compression.bf16, torch.bfloat16)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_wide_floats_are_sent_in_16_bits(compression: type[Compressor], half: torch.dtype, dtype: torch.dtype) -> None:
    small, context = compression.compress(torch.ones(3, dtype=dtype))
    assert small.dtype == half
    assert compression.decompress(small, context).dtype == dtype


@pytest.mark.parametrize("compression", [Compression.none, Compression.fp16, Compression.bf16])
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float16, torch.bfloat16])
def test_others_are_left_alone(compression: type[Compressor], dtype: torch.dtype) -> None:
    tensor = torch.ones(3, dtype=dtype)
    small, context = compression.compress(tensor)
    assert small is tensor
    assert compression.decompress(small, context) is tensor


def test_gradients_flow_through() -> None:
    x = torch.ones(3, requires_grad=True)
    small, context = Compression.bf16.compress(x)
    Compression.bf16.decompress(small * 2, context).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2.0] * 3
