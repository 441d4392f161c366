"""The C core's reductions against numpy's, bit by bit, for every type, operation and factor."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hora.transport import arithmetic, shm
from hora.transport.base import DType, ReduceOp
from hora.transport.kernels import reduce_parts

OPS = [ReduceOp.SUM, ReduceOp.AVERAGE, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT]


@pytest.fixture(autouse=True)
def core() -> None:
    if not shm.available():
        pytest.skip(shm.why_not())


@given(
    dtype=st.sampled_from(list(DType)),
    op=st.sampled_from(OPS),
    ranks=st.integers(1, 5),
    count=st.sampled_from([0, 1, 7, 33, 1000]),
    scales=st.sampled_from([(1.0, 1.0), (0.5, 3.0)]),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_same_bits(
    dtype: DType, op: ReduceOp, ranks: int, count: int, scales: tuple[float, float], seed: int
) -> None:
    generator = np.random.default_rng(seed)
    small = generator.integers(0, 8, (ranks, count))  # products of small integers are exact in every type
    if dtype is DType.BFLOAT16:
        parts = [(row.astype("float32").view("uint32") >> 16).astype("uint16") for row in small]
    else:
        parts = [row.astype(dtype.numpy) for row in small]
    expected = arithmetic.reduce_parts(parts, dtype, op, *scales, ranks)
    np.testing.assert_array_equal(reduce_parts(parts, dtype, op, *scales, ranks), expected)


def test_parts_with_gaps_are_summed_too() -> None:
    wide = np.arange(12, dtype="float32").reshape(6, 2)
    found = reduce_parts([wide[:, 0], wide[:, 1]], DType.FLOAT32, ReduceOp.SUM, 1.0, 1.0, 1)
    np.testing.assert_array_equal(found, wide.sum(axis=1))
