"""Random programs on every way data can take, for about a minute; and that what runs them would notice.

``python -m tests.programs`` runs more of them; its docstring says what is tried and what is not.
"""

from __future__ import annotations

import random
import time
from collections import Counter

import numpy as np
import pytest
from tests.programs.__main__ import operations_in
from tests.programs.model import Model
from tests.programs.order import Instance, order_of
from tests.programs.pool import Failed, Pool, missing_for
from tests.programs.program import DTYPES, KINDS, REDUCTIONS, Op, Phase, Program, draw, mix

SEED = 1
SECONDS = {"shm": 30.0, "gloo": 5.0, "mpi": 4.0, "hosts": 5.0, "ucx": 4.0}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("layout", SECONDS)
def test_programs(layout: str) -> None:
    if missing := missing_for(layout):
        pytest.skip(missing)
    with Pool(layout, 4) as pool:
        if layout == "shm":
            it_would_be_noticed(pool)
        until = time.monotonic() + SECONDS[layout]
        number = 0
        while number == 0 or time.monotonic() < until:
            try:
                # No worker at a low priority: beside other tests it might not run at all.
                pool.perform(SEED, number, idle=False, timeout_s=100.0)
            except Failed as failed:
                pytest.fail(f"python -m tests.programs --seed {SEED} --on {layout} --only {number}: {failed}")
            number += 1


def it_would_be_noticed(pool: Pool) -> None:
    """One rank brings another number than it should: all say which operation was wrong."""
    number = next(n for n in range(100) if _adds_numbers(_every(draw(SEED, n, 4))[0]))
    with pytest.raises(Failed, match="wrong results:\nrank 0: phase 0 thread 0, step 0, ") as failed:
        pool.perform(SEED, number, kept=[0], spoil="wrong", idle=False)
    assert not failed.value.lost
    assert all(f"rank {rank}: phase 0" in str(failed.value) for rank in range(4)), failed.value
    assert "tensor 0, result: 1 of " in str(failed.value), failed.value


def _adds_numbers(op: Op) -> bool:
    whole = op.set == 0 and op.kind == "allreduce" and op.how == "sum" and op.memory != "strided"
    return whole and op.dtypes[0] != "bool" and 0 not in op.shapes[0] and op.prescale == 1.0


def test_a_rank_that_leaves_an_operation_out_is_noticed() -> None:
    with Pool("shm", 2) as pool:
        with pytest.raises(Failed, match="--- rank 0 ---") as failed:
            pool.perform(SEED, 0, spoil="absent", idle=False)
        assert failed.value.lost and not pool.fit


# ---- the programs ----


def _every(program: Program) -> list[Op]:
    return [op for phase in program.phases for thread in phase.threads for op in thread]


def test_a_seed_gives_the_same_programs_and_everything_is_tried() -> None:
    programs = [draw(5, number, 4) for number in range(150)]
    assert programs == [draw(5, number, 4) for number in range(150)]
    operations = [op for program in programs for op in _every(program)]
    assert {op.kind for op in operations} == set(KINDS)
    assert {op.how for op in operations if op.kind == "allreduce"} == set(REDUCTIONS)
    assert {dtype for op in operations for dtype in op.dtypes} == set(DTYPES)
    assert {op.memory for op in operations} == {"plain", "kept", "shared", "mixed", "strided"}
    assert any(phase.quotas for program in programs for phase in program.phases)
    assert any(len(phase.threads) > 1 for program in programs for phase in program.phases)
    functions = Counter(op.function for op in operations)
    assert len(functions) == 8 + 4 + 4 + 2 + 4 + 1, functions  # every form of every one


def test_some_of_the_operations() -> None:
    assert operations_in("3:5,9,12:", 14) == [3, 4, 9, 12, 13] and operations_in("", 14) is None
    program = draw(5, 3, 4)
    kept = {op.number for op in _every(program)[1:4]}
    assert [op.number for op in _every(program.only(kept))] == sorted(kept)


def test_orders_never_deadlock() -> None:
    """Ranks that do as they are told, one move at a time, in which an operation is over when all have submitted it."""
    for number in range(60):
        program = draw(5, number, 3, without=["join"])
        for phase in program.phases:
            everything = [(op, step) for step in range(phase.steps) for op in phase.threads[0]]
            instances = [Instance(op, step, index) for index, (op, step) in enumerate(everything)]
            orders = []
            for rank in range(3):
                mine = [i for i in instances if rank in program.sets[i.op.set]]
                moves = list(order_of(mine, phase.fresh, phase.window, random.Random(f"{number}.{rank}")))
                assert sorted(i.index for what, i in moves if what != "wait") == [i.index for i in mine]
                orders.append(moves)
            assert _simulate(program, orders) == [[], [], []]


def _simulate(program: Program, orders: list[list[tuple[str, Instance]]]) -> list[list[tuple[str, Instance]]]:
    """What is left when nobody can go on."""
    came: Counter[int] = Counter()
    moved, inside = True, [False] * len(orders)
    while moved:
        moved = False
        for rank, moves in enumerate(orders):
            while moves:
                what, instance = moves[0]
                if what != "wait" and not inside[rank]:
                    came[instance.index] += 1
                    inside[rank] = moved = True
                if what != "submit" and came[instance.index] < len(program.sets[instance.op.set]):
                    break
                inside[rank] = False
                moves.pop(0)
                moved = True
    return orders


# ---- the model ----


def _alone(op: Op, sets: tuple[tuple[int, ...], ...] = ((0, 1, 2),), **phase: object) -> tuple[Model, Phase]:
    one = Phase(((op,),), 1, **phase)  # type: ignore[arg-type]
    return Model(Program(1, 1, 3, sets, (one,), True, True)), one


@pytest.mark.parametrize("dtype", ["int16", "float32"])
def test_reductions_by_hand(dtype: str) -> None:
    for how in ("sum", "average", "min", "max", "product"):
        op = Op(0, "allreduce", 0, "x", (dtype,), ((50,),), how=how, prescale=0.5, postscale=-3.0)
        model, phase = _alone(op)
        parts = [model.brought(phase, op, 0, rank, 0).tolist() for rank in range(3)]
        cut = int if dtype == "int16" else float
        for result, values in zip(
            model.expected(phase, op, 0, 0, 1)[0].tolist(), zip(*parts, strict=True), strict=True
        ):
            a, b, c = (cut(value * 0.5) for value in values)
            by_hand = {"sum": a + b + c, "average": cut((a + b + c) / 3), "min": min(a, b, c), "max": max(a, b, c)}
            assert result == cut(by_hand.get(how, a * b * c) * -3.0)


def test_who_has_joined_brings_nothing() -> None:
    op = Op(0, "allreduce", 0, "x", ("float32",), ((50,),), how="average")
    model, phase = _alone(op, quotas=(1, 0, 1), average_active=True)
    parts = [model.brought(phase, op, 0, rank, 0) for rank in (0, 2)]
    assert np.array_equal(model.expected(phase, op, 0, 0, 0)[0], (parts[0] + parts[1]) / 2)


def test_movements_by_hand() -> None:
    program = Program(1, 1, 3, ((0, 1, 2), (0, 2)), (), True, True)
    model, phase = Model(program), Phase((), 1)
    gather = Op(0, "allgather", 1, "x", ("int32",), ((7, 2),))
    rows = [program.rows(gather, 0, rank, 0) for rank in (0, 2)]
    (gathered,) = model.expected(phase, gather, 0, 0, 2)
    assert gathered.shape == (sum(rows), 2)
    assert np.array_equal(gathered[: rows[0]], model.brought(phase, gather, 0, 0, 0))
    scatter = Op(1, "reducescatter", 1, "x", ("int32",), ((7, 2),))
    both = sum(model.brought(phase, scatter, 0, rank, 0) for rank in (0, 2))
    assert np.array_equal(model.expected(phase, scatter, 0, 0, 0)[0], both[:4])
    assert np.array_equal(model.expected(phase, scatter, 0, 0, 2)[0], both[4:])
    exchange = Op(2, "alltoall", 1, "x", ("int32",), ((9,),))
    sent = [program.sent(exchange, 0, rank) for rank in (0, 2)]
    assert all(sum(splits) <= 9 for splits in sent)
    (received,) = model.expected(phase, exchange, 0, 0, 2)
    assert model.received(exchange, 0, 2) == [splits[1] for splits in sent] and len(received) == sum(s[1] for s in sent)
    ours = model.brought(phase, exchange, 0, 2, 0)[sent[1][0] :][: sent[1][1]]
    assert np.array_equal(received[sent[0][1] :], ours)


def test_adasum_by_hand() -> None:
    op = Op(0, "allreduce", 0, "x", ("float64",), ((5,),), how="adasum")
    model, phase = _alone(op, ((0, 1),))
    a, b = (model.brought(phase, op, 0, rank, 0).astype("float64") for rank in range(2))
    expected = a * (1 - a @ b / (2 * a @ a)) + b * (1 - a @ b / (2 * b @ b))
    assert np.allclose(model.expected(phase, op, 0, 0, 0)[0], expected)


def test_data_of_two_operations_differ() -> None:
    seen = {mix(1, 1, op, step, rank, 0) for op in range(20) for step in range(10) for rank in range(4)}
    assert len(seen) == 800
