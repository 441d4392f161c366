"""Arguments mean the same in every framework, and wrong ones are refused with the fix."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hora.errors import UnsupportedError, UsageError
from hora.ops.resolve import check_rows, equal_splits, predivided, reduction, scattered_rows, splits_of
from hora.ops.table import FUNCTIONS
from hora.types import DType, ReduceOp, Reduction

ALLREDUCE = FUNCTIONS["allreduce"][0]
REDUCESCATTER = FUNCTIONS["reducescatter"][0]
FLOAT = [DType.FLOAT32]


@pytest.mark.parametrize(
    ("op", "average", "expected"),
    [
        (None, None, ReduceOp.AVERAGE),
        (None, True, ReduceOp.AVERAGE),
        (None, False, ReduceOp.SUM),
        (ReduceOp.MIN, None, ReduceOp.MIN),
        (1, None, ReduceOp.SUM),
    ],
)
def test_op(op: ReduceOp | None, average: bool | None, expected: ReduceOp) -> None:
    how = reduction(ALLREDUCE, FLOAT, op, average)
    assert how == Reduction(expected, 1.0, 1.0)
    assert isinstance(how.op, ReduceOp)


def test_average_and_op_exclude_each_other() -> None:
    with pytest.raises(UsageError, match=r"average=True and op=Sum .* Keep op= only"):
        reduction(ALLREDUCE, FLOAT, ReduceOp.SUM, average=True)


@pytest.mark.parametrize("op", [6, -1, "sum"])
def test_no_such_op(op: int) -> None:
    with pytest.raises(UsageError, match="Use one of Average, Sum, Adasum, Min, Max, Product"):
        reduction(ALLREDUCE, FLOAT, op)


def test_op_the_collective_cannot() -> None:
    for kind in (UnsupportedError, UsageError, RuntimeError):  # Horovod's users catch a RuntimeError
        with pytest.raises(kind, match="reducescatter: op=Min is not one of Average, Sum"):
            reduction(REDUCESCATTER, FLOAT, ReduceOp.MIN)


@pytest.mark.parametrize(
    ("dtype", "op", "prescale", "words"),
    [
        (DType.BOOL, ReduceOp.AVERAGE, 1.0, "Average of bool.*op=Max for"),
        (DType.BOOL, ReduceOp.SUM, 2.0, "cannot be scaled"),
        (DType.INT32, ReduceOp.ADASUM, 1.0, r"Adasum of int32.*\.float\(\)"),
        (DType.FLOAT32, ReduceOp.SUM, math.nan, "prescale_factor is nan"),
        (DType.FLOAT32, ReduceOp.SUM, math.inf, "finite"),
    ],
)
def test_refused(dtype: DType, op: ReduceOp, prescale: float, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        reduction(ALLREDUCE, [DType.FLOAT64, dtype], op, prescale=prescale)


def test_factors_become_floats() -> None:
    how = reduction(ALLREDUCE, FLOAT, ReduceOp.SUM, prescale=2, postscale=True)
    assert [type(value) for value in how[1:3]] == [float, float]


@given(rows=st.integers(0, 100), set_size=st.integers(1, 9))
def test_scattered_rows_are_all_dealt_out_lowest_ranks_first(rows: int, set_size: int) -> None:
    shares = [scattered_rows(rows, set_size, i) for i in range(set_size)]
    assert sum(shares) == rows
    assert shares == sorted(shares, reverse=True)
    assert max(shares) - min(shares) <= 1


def test_equal_splits() -> None:
    assert equal_splits(0, 3) == (0, 0, 0)
    with pytest.raises(UsageError, match="7 rows over 3 ranks"):
        equal_splits(7, 3)


@pytest.mark.parametrize(
    ("splits", "words"),
    [
        ([1, 1], "2 numbers for 3 ranks"),
        ([1, -1, 1], "negative"),
        ([2, 2, 1], "adds up to 5 but the tensor has 4 rows"),
    ],
)
def test_bad_splits(splits: list[int], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        splits_of(splits, rows=4, set_size=3)


def test_rows_may_stay_at_home() -> None:
    assert splits_of([0, 1, 0], rows=4, set_size=3) == (0, 1, 0)


def test_scalars_have_no_rows() -> None:
    check_rows("allgather", (0,))
    with pytest.raises(UsageError, match=r"allgather of a 0-d tensor.*reshape\(1\)"):
        check_rows("allgather", ())


@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.ADASUM, ReduceOp.MIN])
def test_only_an_average_can_be_divided_before_its_sum(op: ReduceOp) -> None:
    assert predivided(op, 1.0, 4) == Reduction(op)
    with pytest.raises(UsageError, match="not supported with op != Average"):
        predivided(op, 2.0, 4)
    assert predivided(ReduceOp.AVERAGE, 1.0, 4) == Reduction(ReduceOp.AVERAGE)
