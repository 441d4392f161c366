"""Who brought inf or nan: every type, every way through the core, every rank; against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.table_crew import Rank, run

from hora.config.settings import Settings
from hora.engine.backend import NotFinite
from hora.engine.request import Request, TensorSpec
from hora.types import Buffer, DType, Kind, ReduceOp, Reduction

TYPES = {
    DType.FLOAT16: torch.float16,
    DType.BFLOAT16: torch.bfloat16,
    DType.FLOAT32: torch.float32,
    DType.FLOAT64: torch.float64,
}
COUNTS = [1, 7, 1000, 5000, 70_001, 400_003]  # inline; one chunk; several


def tensor(me: Rank, count: int, dtype: torch.dtype, shared: bool) -> torch.Tensor:
    """Ones, in memory of this process's own or in memory that the ranks share."""
    if not shared:
        return torch.ones(count, dtype=dtype)
    return torch.frombuffer(me.backend.allocate(count * dtype.itemsize), dtype=dtype).fill_(1)


def allreduce(
    me: Rank, name: str, tensors: list[torch.Tensor], op: ReduceOp = ReduceOp.SUM, **more: Any
) -> tuple[NotFinite, ...]:
    kinds = {kind: dtype for dtype, kind in TYPES.items()}
    segments = tuple(TensorSpec(kinds[t.dtype], tuple(t.shape)) for t in tensors)
    members = more.pop("members", me.everyone)
    request = Request(Kind.ALLREDUCE, name, segments, members, Reduction(op, **more), line="here:1")
    buffers = [Buffer(t.data_ptr(), kinds[t.dtype], tuple(t.shape), t) for t in tensors]
    return me.backend.prepare(request).start(buffers, buffers).wait().not_finite


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("shared", [False, True])
def test_every_type_size_way_and_rank(dtype: DType, size: int, shared: bool) -> None:
    def body(me: Rank) -> None:
        for count in COUNTS:
            data = tensor(me, count, TYPES[dtype], shared)
            assert allreduce(me, f"fine{count}", [data]) == ()
            for culprit in range(size):
                for place, value in ((0, np.nan), (count // 2, np.inf), (count - 1, -np.inf)):
                    data.fill_(1)
                    if me.rank == culprit:
                        data[place] = value
                    found = allreduce(me, f"{count}.{culprit}.{place}", [data], ReduceOp.AVERAGE)
                    assert found == (NotFinite(culprit, 0, place, bool(np.isnan(value))),)
                    assert torch.isfinite(data).sum() == count - 1 and not torch.isfinite(data[place])
            data.fill_(1)
            assert allreduce(me, f"fine{count}", [data]) == ()

    run(size, body)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_what_numpy_finds(data: st.DataObject) -> None:
    """Any number of bad values on any ranks in a group of tensors of mixed types, twice under the same name."""
    size = data.draw(st.integers(1, 4))
    kinds = data.draw(st.lists(st.sampled_from(list(TYPES)), min_size=1, max_size=4))
    counts = [data.draw(st.sampled_from([1, 3, 900, 3000, 40_000, 90_001])) for _ in kinds]
    shared = data.draw(st.booleans())
    seed = data.draw(st.integers(0, 1 << 30))
    op = data.draw(st.sampled_from([ReduceOp.SUM, ReduceOp.AVERAGE]))

    def brought(rank: int, turn: int) -> list[torch.Tensor]:
        random = np.random.default_rng([seed, rank, turn])
        result = []
        for kind, count in zip(kinds, counts, strict=True):
            values = random.normal(size=count)
            for _ in range(int(random.integers(0, 3)) * int(random.integers(0, 2))):
                values[random.integers(count)] = random.choice([np.nan, np.inf, -np.inf])
            result.append(torch.from_numpy(values).to(TYPES[kind]))
        return result

    def expected(turn: int) -> tuple[NotFinite, ...]:
        found = []
        for rank in range(size):
            for segment, part in enumerate(brought(rank, turn)):
                bad = np.flatnonzero(~np.isfinite(part.double().numpy()))
                if len(bad):
                    found.append(NotFinite(rank, segment, int(bad[0]), bool(part[int(bad[0])].isnan())))
                    break
        return tuple(found)

    def body(me: Rank) -> None:
        for turn in range(4):
            tensors = [tensor(me, len(t), t.dtype, shared).copy_(t) for t in brought(me.rank, turn)]
            assert allreduce(me, "group", tensors, op) == expected(turn)

    run(size, body)


@pytest.mark.parametrize("size", [2, 3])
def test_what_is_fused_is_told_apart(size: int) -> None:
    def body(me: Rank) -> None:
        arrays = [np.ones(6000, "float32") for _ in range(8)]
        if me.rank == size - 1:
            arrays[5][77] = np.nan
        tickets = [me.allreduce(array, f"x{i}") for i, array in enumerate(arrays)]
        found = [ticket.wait().not_finite for ticket in tickets]
        assert found == [() if i != 5 else (NotFinite(size - 1, 0, 77, True),) for i in range(8)]

    run(size, body, Settings(cycle_time_ms=20.0))


@pytest.mark.parametrize("count", [10, 5000, 200_000])
@pytest.mark.parametrize("dtype", TYPES)
def test_a_sum_that_is_too_large_is_nobodys(dtype: DType, count: int) -> None:
    def body(me: Rank) -> None:
        for shared in (False, True):
            data = tensor(me, count, TYPES[dtype], shared)
            data[count - 2] = torch.finfo(data.dtype).max
            assert allreduce(me, f"large{shared}", [data]) == (NotFinite(-1, 0, count - 2, False),)

    run(2, body)


@pytest.mark.parametrize("shared", [False, True])
def test_large_numbers_are_fine(shared: bool) -> None:
    """Adding them up overflows, each of them does not."""

    def body(me: Rank) -> None:
        for dtype in (torch.float32, torch.float64):
            data = tensor(me, 70_000, dtype, shared).fill_(torch.finfo(dtype).max / 4)
            assert allreduce(me, f"large{dtype}", [data]) == ()
            assert bool((data == torch.finfo(dtype).max / 2).all())

    run(2, body)


def test_other_operations_and_whole_numbers_are_left_alone() -> None:
    def body(me: Rank) -> None:
        low = torch.full((5000,), -torch.inf)
        for op in (ReduceOp.MAX, ReduceOp.MIN):
            assert allreduce(me, op.name, [low], op) == ()
        whole = np.full(5000, -1, "int32")
        assert me.allreduce(whole, "whole").wait().not_finite == ()

    run(2, body)


@pytest.mark.parametrize("count", [100, 70_000])
def test_a_rank_that_has_joined_takes_no_blame_and_gives_it(count: int) -> None:
    """It has no data but sums its share all the same."""

    def body(me: Rank) -> None:
        if me.rank < 2:
            for shared in (False, True):
                for place in (0, count // 2, count - 1):
                    data = tensor(me, count, torch.float32, shared)
                    if me.rank == 1:
                        data[place] = torch.nan
                    assert allreduce(me, f"x{shared}{place}", [data]) == (NotFinite(1, 0, place, True),)
        me.backend.join(False)

    run(3, body)


def test_sets_speak_of_ranks_among_all() -> None:
    def body(me: Rank) -> None:
        if me.rank == 0:
            return
        for count in (10, 70_000):
            data = torch.ones(count)
            data[3] = torch.inf if me.rank == 2 else 1.0
            assert allreduce(me, f"x{count}", [data], members=(1, 2)) == (NotFinite(2, 0, 3, False),)

    run(3, body)


def test_factors_do_not_hide_it() -> None:
    def body(me: Rank) -> None:
        for count in (10, 70_000):
            data = torch.ones(count)
            data[3] = torch.inf if me.rank == 1 else 1.0
            found = allreduce(me, f"x{count}", [data], prescale=0.0, postscale=0.5)
            assert found == (NotFinite(1, 0, 3, False),)

    run(2, body)


def test_repeated_at_once_is_still_carried_out() -> None:
    def body(me: Rank) -> None:
        request = Request(Kind.ALLREDUCE, "again", (TensorSpec(DType.FLOAT32, (10,)),), me.everyone, line="here:1")
        operation = me.backend.prepare(request)
        for turn in range(6):
            data = np.ones(10, "float32")
            data[turn] = np.nan if turn % 2 else 1.0
            operation.run(data.ctypes.data, data)
            assert np.isnan(data[turn]) == turn % 2 and data[-1] == 2

    run(2, body)
