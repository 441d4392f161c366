"""The arithmetic against plain Python and torch, element type by element type."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hora.transport.arithmetic import adasum, bytes_of, reduce_parts
from hora.types import Buffer, DType, ReduceOp

INTEGERS = [DType.UINT8, DType.INT8, DType.INT16, DType.INT32, DType.INT64]
HALVES = {DType.FLOAT16: torch.float16, DType.BFLOAT16: torch.bfloat16}


@pytest.mark.parametrize("dtype", INTEGERS)
@given(data=st.data())
def test_integer_averages_are_exact_and_go_toward_zero(dtype: DType, data: st.DataObject) -> None:
    info = np.iinfo(dtype.numpy)
    low, high = (info.min, info.max) if dtype is not DType.INT64 else (-(2**60), 2**60)
    values = data.draw(st.lists(st.integers(low, high), min_size=1, max_size=4))
    parts = [np.array([value], dtype.numpy) for value in values]
    result = reduce_parts(parts, dtype, ReduceOp.AVERAGE, 1.0, 1.0, len(values))
    assert result.dtype == dtype.numpy and result[0] == int(Fraction(sum(values), len(values)))


@pytest.mark.parametrize("dtype", INTEGERS)
@given(data=st.data())
def test_integer_sums_wrap_as_their_type_does(dtype: DType, data: st.DataObject) -> None:
    info = np.iinfo(dtype.numpy)
    values = data.draw(st.lists(st.integers(info.min, info.max), min_size=2, max_size=4))
    parts = [np.array([value], dtype.numpy) for value in values]
    (result,) = reduce_parts(parts, dtype, ReduceOp.SUM, 1.0, 1.0, 1).tolist()
    assert (result - sum(values)) % 2**info.bits == 0


@pytest.mark.parametrize(
    ("op", "expected"),
    [(ReduceOp.SUM, [1, 1, 0]), (ReduceOp.MAX, [1, 1, 0]), (ReduceOp.PRODUCT, [1, 0, 0]), (ReduceOp.MIN, [1, 0, 0])],
)
def test_bool_is_any_or_all(op: ReduceOp, expected: list[int]) -> None:
    parts = [np.array([True, True, False]), np.array([True, False, False])]
    assert reduce_parts(parts, DType.BOOL, op, 1.0, 1.0, 1).tolist() == expected


@pytest.mark.parametrize("dtype", HALVES)
def test_halves_are_summed_in_float32_and_rounded_once_to_nearest_even(dtype: DType) -> None:
    random = np.random.default_rng(0)
    floats = [torch.from_numpy(random.normal(size=10_000).astype("float32")).to(HALVES[dtype]) for _ in range(5)]
    parts = [half.view(torch.int16).numpy().view(dtype.numpy) for half in floats]
    total = floats[0].float()
    for half in floats[1:]:
        total = total + half.float()
    expected = (total / 5).to(HALVES[dtype]).view(torch.int16).numpy()
    result = reduce_parts(parts, dtype, ReduceOp.AVERAGE, 1.0, 1.0, 5)
    assert np.array_equal(result.view("int16"), expected)


def test_bfloat16_keeps_infinities_and_nans() -> None:
    values = torch.tensor([float("inf"), float("-inf"), float("nan"), 3.3e38], dtype=torch.bfloat16)
    part = values.view(torch.int16).numpy().view("uint16")
    result = reduce_parts([part], DType.BFLOAT16, ReduceOp.SUM, 1.0, 1.0, 1)
    again = torch.from_numpy(result.view("int16").copy()).view(torch.bfloat16)
    assert torch.equal(torch.isnan(again), torch.isnan(values)) and torch.equal(again[:2], values[:2])


@pytest.mark.parametrize("op", [ReduceOp.MIN, ReduceOp.MAX, ReduceOp.SUM, ReduceOp.PRODUCT])
def test_a_nan_anywhere_stays_a_nan(op: ReduceOp) -> None:
    nan, one = np.array([np.nan], "float32"), np.array([1.0], "float32")
    for parts in ([nan, one], [one, nan]):
        assert np.isnan(reduce_parts(parts, DType.FLOAT32, op, 1.0, 1.0, 1)).all()


def test_scales_apply_before_and_after() -> None:
    parts = [np.array([1.0, 2.0], "float32"), np.array([3.0, 4.0], "float32")]
    assert reduce_parts(parts, DType.FLOAT32, ReduceOp.AVERAGE, 0.5, 10.0, 2).tolist() == [10.0, 15.0]
    integers = [np.array([5, -5], "int32"), np.array([5, -5], "int32")]
    assert reduce_parts(integers, DType.INT32, ReduceOp.SUM, 0.5, 1.0, 1).tolist() == [4, -4]
    assert parts[0].tolist() == [1.0, 2.0]  # what came in is not touched


def test_sums_run_in_rank_order() -> None:
    parts = [np.array([x], "float32") for x in (1e8, 1.0, -1e8, 1.0)]
    expected = np.float32(np.float32(np.float32(1e8) + np.float32(1)) + np.float32(-1e8)) + np.float32(1)
    assert reduce_parts(parts, DType.FLOAT32, ReduceOp.SUM, 1.0, 1.0, 1)[0] == expected


@given(st.lists(st.integers(-1000, 1000).map(lambda n: n / 16), min_size=3, max_size=3), st.sampled_from([1, 2, 4, 8]))
def test_adasum_of_equals_is_their_mean_and_of_zeros_zero(values: list[float], ranks: int) -> None:
    part = np.array(values)
    np.testing.assert_allclose(adasum([part] * ranks, DType.FLOAT64, 1.0, 1.0), part, rtol=1e-12, atol=1e-300)
    assert adasum([part * 0] * ranks, DType.FLOAT64, 1.0, 1.0).tolist() == [0, 0, 0]


def test_adasum_of_orthogonals_is_their_sum_and_of_a_zero_the_other() -> None:
    a, b = np.array([3.0, 0.0]), np.array([0.0, 4.0])
    assert adasum([a, b], DType.FLOAT64, 1.0, 2.0).tolist() == [6, 8]
    assert adasum([a, b * 0], DType.FLOAT64, 1.0, 1.0).tolist() == [3, 0]


def test_memory_is_seen_in_place_and_kept_alive() -> None:
    def view() -> np.ndarray[Any, Any]:
        array = np.zeros((2, 2), "float32")
        return bytes_of(Buffer(array.ctypes.data, DType.FLOAT32, array.shape, array))

    seen = view()
    seen[:] = 7
    assert seen.nbytes == 16 and (seen == 7).all()
    assert bytes_of(Buffer(0, DType.INT8, (0, 3), None)).size == 0
