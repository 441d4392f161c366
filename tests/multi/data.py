"""Tensors that every rank can compute for every other rank, and what collectives must make of them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import torch

from hora.types import ReduceOp

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
DTYPES = (*INTEGERS, *FLOATS, torch.bool)

SHAPES = ((), (0,), (0, 3), (3, 0), (1,), (3,), (1000,), (70001,), (300000,), (2, 3, 4), (5, 1, 7, 2))

_RELATIVE = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 1e-5, torch.float64: 1e-12}


def tensor(rank: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32, seed: str = "") -> torch.Tensor:
    """The tensor of one rank: the same wherever it is computed, another for each rank and seed."""
    random = np.random.default_rng([rank, zlib.crc32(seed.encode())])
    if dtype is torch.bool:
        return torch.from_numpy(np.asarray(random.integers(0, 2, shape, dtype=np.int64))).to(dtype)
    if dtype.is_floating_point:
        return torch.from_numpy(np.asarray(random.uniform(0.5, 2.0, shape) * random.choice([-1, 1], shape))).to(dtype)
    return torch.from_numpy(np.asarray(random.integers(1, 4, shape, dtype=np.int64))).to(dtype)


def tensors(
    ranks: Any, shape: tuple[int, ...], dtype: torch.dtype = torch.float32, seed: str = ""
) -> list[torch.Tensor]:
    return [tensor(rank, shape, dtype, seed) for rank in ranks]


def strided(contiguous: torch.Tensor) -> torch.Tensor:
    """The same values in memory that is not contiguous (where there is anything to spread out)."""
    spread = contiguous.new_zeros((*contiguous.shape, 2))
    spread[..., 0] = contiguous
    return spread[..., 0]


def combine(
    op: ReduceOp, parts: list[torch.Tensor], prescale: float = 1.0, postscale: float = 1.0, divisor: int | None = None
) -> torch.Tensor:
    """What numpy says an allreduce of these must give; computed in 64 bits."""
    dtype = parts[0].dtype
    wide = np.float64 if dtype.is_floating_point else np.int64
    arrays = np.stack([np.asarray(part.double() if dtype.is_floating_point else part.long()) for part in parts])
    scaled = arrays if prescale == 1.0 else (arrays * prescale).astype(wide)
    if op is ReduceOp.MIN:
        total = scaled.min(axis=0)
    elif op is ReduceOp.MAX:
        total = scaled.max(axis=0)
    elif op is ReduceOp.PRODUCT:
        total = scaled.prod(axis=0)
    else:
        total = scaled.sum(axis=0)
    result = total if postscale == 1.0 else total * postscale
    if op is ReduceOp.AVERAGE:
        result = result / (divisor or len(parts))
    return torch.from_numpy(np.asarray(result)).to(dtype)  # integers: truncated toward zero


def check(result: torch.Tensor | None, expected: torch.Tensor, what: object = "") -> None:
    """Same type, same shape, same values: exactly, or nearly for floating point."""
    assert result is not None, f"{what}: nothing where {expected} was expected"
    assert result.dtype == expected.dtype, f"{what}: {result.dtype} where {expected.dtype} was expected"
    assert result.shape == expected.shape, f"{what}: {result.shape} where {expected.shape} was expected"
    tolerance = _RELATIVE.get(expected.dtype, 0.0)
    fine = torch.allclose(result.detach().double(), expected.double(), rtol=tolerance, atol=4 * tolerance)
    assert fine, f"{what}: {result} where {expected} was expected"


@contextmanager
def process_sets(hvd: ModuleType, size: int) -> Iterator[list[Any]]:
    """The global set, the even ranks, the last two, and the last alone: as many as differ at this size."""
    wanted = {tuple(range(0, size, 2)), tuple(range(size))[-2:], (size - 1,)} - {tuple(range(size))}
    added = [hvd.add_process_set(list(ranks)) for ranks in sorted(wanted)]
    yield [hvd.global_process_set, *added]
    # Not in a finally: after a failure ranks are out of step, and this is a collective.
    for process_set in added:
        hvd.remove_process_set(process_set)


@contextmanager
def raises(kind: type[BaseException], *words: str) -> Iterator[list[BaseException]]:
    """Like pytest.raises, with every word required in the message; the exception is put into the list."""
    caught: list[BaseException] = []
    try:
        yield caught
    except kind as error:
        caught.append(error)
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"{missing} not in: {error}"
        return
    raise AssertionError(f"{kind.__name__} was not raised")
