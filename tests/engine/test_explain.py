"""The words for what is wrong with requests: complete, in order, the same for everybody."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hora.engine.explain import compact_ranks, explain_left, explain_mismatch, explain_unfit, suspicious_lines
from hora.engine.request import Request, TensorSpec
from hora.types import DType, Kind, ReduceOp, Reduction

BASE = Request(Kind.ALLREDUCE, "allreduce.x", (TensorSpec(DType.FLOAT32, (3, 2)),), (0, 1, 2), line="train.py:1")


def changed(**fields: Any) -> Request:
    return msgspec.structs.replace(BASE, line="train.py:9", **fields)


@pytest.mark.parametrize(("name", "uneven"), [("allreduce.gradients.0.bucket.1", True), ("allreduce.x", False)])
def test_only_what_is_of_a_step_may_be_of_uneven_data(name: str, uneven: bool) -> None:
    said = explain_left(name, [1])
    assert ("hvd.join()" in said) is uneven and said.lower().endswith("look at what rank 1 did last.")


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"segments": (TensorSpec(DType.INT32, (3, 2)),)}, ("Mismatched data types", "float32", "int32")),
        ({"kind": Kind.BROADCAST}, ("Mismatched operations", "allreduce", "broadcast")),
        ({"grouped": True}, ("Mismatched operations", "allreduce", "grouped allreduce of 1")),
        ({"segments": BASE.segments * 2}, ("Mismatched group sizes", "1 tensor", "2 tensors")),
        ({"segments": (TensorSpec(DType.FLOAT32, (3, 3)),)}, ("Mismatched shapes", "(3, 2)", "(3, 3)")),
        (
            {"how": Reduction(ReduceOp.SUM, 1.0000001)},
            ("Mismatched scale factors", "prescale 1.0,", "prescale 1.0000001,"),
        ),
        ({"how": Reduction(ReduceOp.MIN)}, ("Mismatched reduce operations", "Sum", "Min")),
        ({"root": 1}, ("Mismatched root ranks", "root -1", "root 1")),
        ({"device": "cuda"}, ("Mismatched devices", "cpu", "cuda")),
    ],
)
def test_each_difference_is_named_with_ranks_values_and_lines(other: dict[str, Any], words: tuple[str, ...]) -> None:
    text = explain_mismatch({0: BASE, 1: changed(**other), 2: BASE})
    assert text is not None
    assert all(word in text for word in (*words, "'allreduce.x'", "ranks 0, 2", "rank 1", "train.py:1", "train.py:9"))


def test_the_first_check_in_horovods_order_wins() -> None:
    other = changed(segments=(TensorSpec(DType.INT32, (9,)),), how=Reduction(ReduceOp.MAX), root=1, device="cuda")
    text = explain_mismatch({0: BASE, 1: other})
    assert text is not None and text.startswith("Mismatched data types")
    text = explain_mismatch({0: BASE, 1: changed(how=Reduction(ReduceOp.MAX), root=1)})
    assert text is not None and text.startswith("Mismatched reduce operations")


def test_what_agrees_is_not_explained_and_lines_may_differ() -> None:
    assert explain_mismatch({0: BASE, 1: changed()}) is None
    assert explain_mismatch({2: BASE}) is None


@pytest.mark.parametrize("kind", [Kind.ALLGATHER, Kind.ALLTOALL])
def test_rows_may_differ_where_they_are_gathered_but_nothing_else(kind: Kind) -> None:
    def rows(*shape: int) -> Request:
        return msgspec.structs.replace(BASE, kind=kind, segments=(TensorSpec(DType.FLOAT32, shape),))

    assert explain_mismatch({0: rows(3, 2), 1: rows(6, 2)}) is None
    text = explain_mismatch({0: rows(3, 2), 1: rows(3, 4)})
    assert text is not None and "(any, 2)" in text and "(any, 4)" in text
    assert explain_mismatch({0: rows(3), 1: rows()}) is not None


@pytest.mark.parametrize(
    ("fields", "contributors", "words"),
    [
        ({"kind": Kind.ALLGATHER, "segments": (TensorSpec(DType.INT8, ()),)}, 3, "at least one dimension"),
        ({"kind": Kind.REDUCESCATTER, "segments": (TensorSpec(DType.INT8, ()),)}, 3, "at least one dimension"),
        ({"kind": Kind.REDUCESCATTER, "how": Reduction(ReduceOp.MAX)}, 3, "sum or average"),
        ({"how": Reduction(ReduceOp.ADASUM)}, 3, "power of two"),
        ({"how": Reduction(ReduceOp.ADASUM), "segments": (TensorSpec(DType.INT8, (2,)),)}, 4, "floating point"),
        ({"kind": Kind.ALLTOALL, "splits": (1, 1)}, 3, "splits"),
        ({"kind": Kind.ALLTOALL, "splits": (1, 1, 5)}, 3, "splits"),
        ({"kind": Kind.ALLTOALL, "splits": (1, -1, 1)}, 3, "splits"),
        ({"kind": Kind.ALLTOALL, "segments": (TensorSpec(DType.INT8, (4,)),)}, 3, "splits"),
    ],
)
def test_what_cannot_be_done_is_refused(fields: dict[str, Any], contributors: int, words: str) -> None:
    text = explain_unfit({0: changed(**fields), 1: changed(**fields)}, contributors)
    assert text is not None and words in text and "train.py:9" in text


@pytest.mark.parametrize(
    "fields",
    [{}, {"how": Reduction(ReduceOp.ADASUM)}, {"kind": Kind.ALLTOALL}, {"kind": Kind.ALLTOALL, "splits": (1, 0, 1)}],
)
def test_what_can_be_done_is_not_refused(fields: dict[str, Any]) -> None:
    assert explain_unfit({0: changed(**fields)}, 4) is None


def test_only_unnamed_operations_from_different_lines_are_suspicious() -> None:
    unnamed = msgspec.structs.replace(BASE, named=False)
    assert suspicious_lines({0: BASE, 1: changed()}) is None
    assert suspicious_lines({0: unnamed, 1: unnamed}) is None
    text = suspicious_lines({0: unnamed, 1: changed(named=False), 2: unnamed})
    assert text is not None and all(word in text for word in ("train.py:1", "train.py:9", "ranks 0, 2", "rank 1"))


def test_a_thousand_ranks_and_a_thousand_tensors_stay_readable() -> None:
    many = {rank: changed(root=rank, segments=BASE.segments * 1000) for rank in range(1024)}
    text = explain_mismatch(many)
    assert text is not None and len(text.splitlines()) < 25 and "and 1008 more" in text
    assert compact_ranks(range(1024)) == "ranks 0-1023"
