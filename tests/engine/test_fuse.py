"""Fusion: every operation in exactly one batch, batches alike and bounded, in order, and nothing random."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hora.engine.agree import OperationReady
from hora.engine.fuse import plan
from hora.engine.request import Request, TensorSpec
from hora.types import DType, Kind, ReduceOp, Reduction


def ready(name: str, count: int = 10, dtype: DType = DType.FLOAT32, **fields: Any) -> OperationReady:
    contributors, divisor = fields.pop("contributors", (0, 1)), fields.pop("divisor", 2)
    fields.setdefault("segments", (TensorSpec(dtype, (count,)),))
    fields.setdefault("kind", Kind.ALLREDUCE)
    request = Request(name=name, members=(0, 1), **fields)
    return OperationReady((name, (0, 1)), 0, False, dict.fromkeys(contributors, request), contributors, divisor)


def names(batches: list[list[OperationReady]]) -> list[str]:
    return ["".join(operation.key[0] for operation in batch) for batch in batches]


def test_alike_operations_fuse_up_to_the_threshold() -> None:
    operations = [ready(name) for name in "abcde"]
    assert names(plan(operations, 100)) == ["ab", "cd", "e"]
    assert names(plan(operations, 120)) == ["abc", "de"]
    assert names(plan(operations, 200)) == ["abcde"]


def test_zero_disables_and_large_operations_travel_alone() -> None:
    operations = [ready("a"), ready("b", 1000), ready("c")]
    assert names(plan(operations, 0)) == ["a", "b", "c"]
    assert names(plan(operations, 100)) == ["ac", "b"]


def test_looks_ahead_past_what_does_not_match() -> None:
    operations = [ready(name, dtype=DType.FLOAT16 if name in "bd" else DType.FLOAT32) for name in "abcde"]
    assert names(plan(operations, 10_000)) == ["ace", "bd"]


def test_whatever_differs_keeps_operations_apart() -> None:
    others: list[dict[str, Any]] = [
        {"how": Reduction(ReduceOp.MIN)},
        {"how": Reduction(ReduceOp.SUM, 0.5)},
        {"how": Reduction(ReduceOp.SUM, 1.0, 0.5)},
        {"device": "cuda"},
        {"contributors": (0,)},
        {"divisor": 1},
        {"kind": Kind.BROADCAST},
    ]
    for fields in others:
        assert names(plan([ready("a"), ready("b", **fields), ready("c")], 10_000)) == ["ac", "b"]


def test_only_allreduces_fuse() -> None:
    for kind in set(Kind) - {Kind.ALLREDUCE}:
        assert names(plan([ready("a", kind=kind), ready("b", kind=kind)], 10_000)) == ["a", "b"]


def test_groups_stay_whole_and_may_be_kept_alone() -> None:
    group = ready("g", segments=(TensorSpec(DType.FLOAT32, (10,)), TensorSpec(DType.FLOAT32, (5,))), grouped=True)
    assert names(plan([ready("a"), group, ready("b")], 10_000)) == ["agb"]
    assert names(plan([ready("a"), group, ready("b")], 90)) == ["ab", "g"]
    assert names(plan([ready("a"), group, ready("b")], 10_000, disable_group_fusion=True)) == ["ab", "g"]


def test_a_group_of_mixed_types_travels_alone() -> None:
    group = ready("g", segments=(TensorSpec(DType.FLOAT32, (10,)), TensorSpec(DType.FLOAT16, (5,))), grouped=True)
    assert names(plan([ready("a"), group, group], 10_000)) == ["a", "g", "g"]


@given(
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from([DType.FLOAT32, DType.FLOAT16, DType.INT8]), st.booleans())),
    st.integers(0, 300),
    st.randoms(use_true_random=False),
)
def test_every_operation_is_in_one_batch_and_batches_are_bounded(
    wishes: list[tuple[int, DType, bool]], fusion_bytes: int, _random: random.Random
) -> None:
    operations = [
        ready(str(i), count, dtype, how=Reduction(ReduceOp.MIN if low else ReduceOp.SUM))
        for i, (count, dtype, low) in enumerate(wishes)
    ]
    batches = plan(operations, fusion_bytes)
    assert sorted(id(o) for batch in batches for o in batch) == sorted(map(id, operations))
    firsts = [int(batch[0].key[0]) for batch in batches]
    assert firsts == sorted(firsts)
    for batch in batches:
        numbers = [int(operation.key[0]) for operation in batch]
        assert numbers == sorted(numbers)
        assert len({(o.request.segments[0].dtype, o.request.how) for o in batch}) == 1
        assert len(batch) == 1 or sum(o.request.segments[0].nbytes for o in batch) <= fusion_bytes
    assert names(plan(operations, fusion_bytes)) == names(batches)
