"""The C core's arithmetic against numpy and torch, type by type."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.launch.jobs import shared_files

from hora.config.settings import Settings
from hora.errors import EnvironmentUnfit
from hora.transport import shm
from hora.types import DType, ReduceOp

INTEGERS = [DType.UINT8, DType.INT8, DType.INT16, DType.INT32, DType.INT64]
HALVES = [DType.FLOAT16, DType.BFLOAT16]
FLOATS = [DType.FLOAT32, DType.FLOAT64]


def reduce(
    arrays: list[np.ndarray[Any, Any]],
    dtype: DType,
    op: ReduceOp,
    pre: float = 1.0,
    post: float = 1.0,
    divisor: int = 1,
) -> np.ndarray[Any, Any]:
    out = np.empty_like(arrays[0])
    pointers = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
    shm.load().reduce(out.ctypes.data, pointers, len(arrays), out.size, dtype, op, pre, post, float(divisor))
    return out


def bits(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    return tensor.view(torch.int16).numpy().view("uint16").copy()


@pytest.mark.parametrize("dtype", INTEGERS)
@given(st.data())
@settings(max_examples=25, deadline=None)
def test_integers_wrap_as_numpy_and_average_without_overflow(dtype: DType, data: st.DataObject) -> None:
    n, count = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3000))
    limits = np.iinfo(dtype.numpy)
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    arrays = [rng.integers(limits.min, limits.max, count, dtype=dtype.numpy, endpoint=True) for _ in range(n)]
    with np.errstate(over="ignore"):
        total = arrays[0].copy()
        product = arrays[0].copy()
        for a in arrays[1:]:
            total += a
            product *= a
    np.testing.assert_array_equal(reduce(arrays, dtype, ReduceOp.SUM), total)
    np.testing.assert_array_equal(reduce(arrays, dtype, ReduceOp.PRODUCT), product)
    np.testing.assert_array_equal(reduce(arrays, dtype, ReduceOp.MIN), np.minimum.reduce(arrays))
    np.testing.assert_array_equal(reduce(arrays, dtype, ReduceOp.MAX), np.maximum.reduce(arrays))
    if dtype is not DType.INT64:  # exact in 64 bits
        exact = np.sum([a.astype("int64") for a in arrays], axis=0)
        mean = (np.sign(exact) * (np.abs(exact) // n)).astype(dtype.numpy)
        np.testing.assert_array_equal(reduce(arrays, dtype, ReduceOp.AVERAGE, divisor=n), mean)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [1, 7, 1023, 1024, 5000])
def test_floats_are_summed_in_rank_order_to_the_bit(dtype: DType, n: int, count: int) -> None:
    rng = np.random.default_rng(n * count)
    arrays = [rng.normal(size=count).astype(dtype.numpy) for _ in range(n)]
    total = arrays[0].copy()
    product = arrays[0].copy()
    for a in arrays[1:]:
        total += a
        product *= a
    kind = total.dtype.type
    np.testing.assert_array_equal(reduce(arrays, dtype, ReduceOp.SUM), total)
    np.testing.assert_array_equal(reduce(arrays, dtype, ReduceOp.AVERAGE, divisor=n), total / kind(n))
    np.testing.assert_array_equal(reduce(arrays, dtype, ReduceOp.PRODUCT), product)
    scaled = arrays[0] * kind(0.3)
    for a in arrays[1:]:
        scaled = scaled + a * kind(0.3)
    np.testing.assert_array_equal(reduce(arrays, dtype, ReduceOp.SUM, pre=0.3, post=7.0), scaled * kind(7.0))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("n", [1, 2, 4])
def test_halves_are_summed_in_float_and_rounded_once(dtype: DType, n: int) -> None:
    kind = torch.float16 if dtype is DType.FLOAT16 else torch.bfloat16
    torch.manual_seed(n)
    tensors = [(torch.randn(4001) * 100).to(kind) for _ in range(n)]
    total = tensors[0].float()
    for t in tensors[1:]:
        total = total + t.float()
    np.testing.assert_array_equal(reduce([bits(t) for t in tensors], dtype, ReduceOp.SUM), bits(total.to(kind)))
    mean = bits((total / n).to(kind))
    np.testing.assert_array_equal(reduce([bits(t) for t in tensors], dtype, ReduceOp.AVERAGE, divisor=n), mean)


@pytest.mark.parametrize("dtype", HALVES)
def test_every_half_number_survives_a_round_trip(dtype: DType) -> None:
    """All 65536 patterns, with an odd count so that the vector and the scalar code both see some."""
    everything = np.arange(1 << 16, dtype="uint16")
    kind = torch.float16 if dtype is DType.FLOAT16 else torch.bfloat16
    for shift in (0, 3):
        values = np.roll(everything, shift)[: (1 << 16) - shift]
        came_back = torch.from_numpy(reduce([values.copy()], dtype, ReduceOp.SUM).view("int16")).view(kind)
        original = torch.from_numpy(values.view("int16").copy()).view(kind)
        assert torch.equal(came_back.isnan(), original.isnan())
        ordinary = ~original.isnan()
        assert torch.equal(came_back[ordinary].view(torch.int16), original[ordinary].view(torch.int16))


def test_rounding_of_half_is_to_nearest_even_as_torch_does_it() -> None:
    torch.manual_seed(1)
    values = torch.cat([torch.randn(20001) * 10**e for e in (-9, -7, -5, -3, 0, 3, 4, 5)])
    for kind, dtype in ((torch.float16, DType.FLOAT16), (torch.bfloat16, DType.BFLOAT16)):
        small = values.to(kind)
        third = bits((small.float() * np.float32(1 / 3)).to(kind))
        np.testing.assert_array_equal(reduce([bits(small)], dtype, ReduceOp.SUM, post=float(np.float32(1 / 3))), third)


@pytest.mark.parametrize("dtype", [*HALVES, *FLOATS])
@given(st.data())
@settings(max_examples=40, deadline=None)
def test_what_is_not_finite_is_noticed_and_nothing_else(dtype: DType, data: st.DataObject) -> None:
    """Whatever the place, the count, the number of ranks and the factors; large numbers are fine, sums may not be."""
    kinds = {DType.FLOAT16: torch.float16, DType.BFLOAT16: torch.bfloat16, DType.FLOAT32: torch.float32}
    kind = kinds.get(dtype, torch.float64)
    n, count = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 2100))
    large = data.draw(st.sampled_from([1.0, torch.finfo(kind).max / 16, torch.finfo(kind).max]))
    tensors = [torch.full((count,), large / (r + 1), dtype=torch.float64).to(kind) for r in range(n)]
    for _ in range(data.draw(st.integers(0, 2))):
        place = data.draw(st.integers(0, count - 1))
        value = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
        tensors[data.draw(st.integers(0, n - 1))][place] = value
    arrays = [bits(t) if dtype in HALVES else t.numpy() for t in tensors]
    pre, post = data.draw(st.sampled_from([(1.0, 1.0), (0.5, 1.0), (1.0, 0.25)]))
    op = data.draw(st.sampled_from([ReduceOp.SUM, ReduceOp.AVERAGE]))
    out = np.empty_like(arrays[0])
    pointers = (ctypes.c_void_p * n)(*(a.ctypes.data for a in arrays))
    divisor = float(n) if op is ReduceOp.AVERAGE else 1.0
    noticed = shm.load().reduce(out.ctypes.data, pointers, n, count, dtype, op, pre, post, divisor)
    result = torch.from_numpy(out.view("int16")).view(kind) if dtype in HALVES else torch.from_numpy(out)
    assert bool(noticed) == (not bool(torch.isfinite(result).all()))
    assert noticed or all(bool(torch.isfinite(t).all()) for t in tensors)


def test_nan_is_not_lost_in_min_and_max() -> None:
    a, b = np.array([1, np.nan, 3], "float32"), np.array([np.nan, 2, 1], "float32")
    np.testing.assert_array_equal(reduce([a, b], DType.FLOAT32, ReduceOp.MIN), np.minimum(a, b))
    np.testing.assert_array_equal(reduce([a, b], DType.FLOAT32, ReduceOp.MAX), np.maximum(a, b))


def test_bool_is_any_and_all() -> None:
    a, b = np.array([0, 0, 1, 1], "bool"), np.array([0, 1, 0, 1], "bool")
    for op, want in ((ReduceOp.SUM, a | b), (ReduceOp.MAX, a | b), (ReduceOp.PRODUCT, a & b), (ReduceOp.MIN, a & b)):
        np.testing.assert_array_equal(reduce([a, b], DType.BOOL, op), want)


def test_a_segment_for_too_many_workers_is_refused_with_a_reason() -> None:
    with pytest.raises(EnvironmentUnfit, match="513 workers"):
        shm.create_segment(513, 1, Settings())


def test_nothing_appears_in_dev_shm() -> None:
    before = shared_files()
    segment = shm.create_segment(4, 1, Settings())
    assert shared_files() == before
    segment.close()
