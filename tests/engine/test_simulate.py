"""The whole engine in one thread: random programs in random interleavings, with mismatches, joins, sets and deaths.

Whatever happens, a sum is right or an error is raised, the same on every rank that took part, and nothing waits.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.simulate import SimulatedWorld, buffer_of

from hora.config.settings import Settings
from hora.engine.negotiate import MessageTicket
from hora.engine.request import Request, TensorSpec
from hora.errors import DuplicateNameError, HorovodInternalError, MismatchError, PeerLostError, ShutDownError
from hora.types import DType, Kind, ReduceOp, Reduction

SEEDS = st.integers(0, 2**32)
TUNED = st.builds(
    Settings, fusion_bytes=st.sampled_from([0, 40, 1 << 20]), cache_capacity=st.sampled_from([0, 1, 3, 1024])
)


def result(ticket: MessageTicket) -> str:
    """ "done", or the error's type and text."""
    assert ticket.done, f"{ticket.request.name} was left waiting"
    try:
        ticket.result()
    except HorovodInternalError as error:
        return f"{type(error).__name__}: {error}"
    return "done"


@given(st.integers(1, 4), SEEDS, TUNED)
@settings(deadline=None)
def test_any_order_gives_the_right_sums_in_one_order_of_execution(size: int, seed: int, tuned: Settings) -> None:
    chance = random.Random(seed)
    world = SimulatedWorld(size, seed=seed, settings=tuned)
    sets = [tuple(range(size)), *(tuple(sorted(chance.sample(range(size), k))) for k in range(1, size))]
    for _ in range(3):  # the same names again: by number
        expected: list[tuple[np.ndarray[Any, Any], float]] = []
        tickets = []
        plan = [(f"t{i}", chance.choice(sets), chance.choice(["float32", "int16"])) for i in range(6)]
        for rank in chance.sample(range(size), size):
            for name, members, dtype in chance.sample(plan, len(plan)):
                if rank in members:
                    array = np.full(3, rank + 1, dtype)
                    tickets.append(world.allreduce(rank, name, array, members=members))
                    expected.append((array, sum(member + 1 for member in members)))
                for _ in range(chance.randrange(3)):
                    world.step()
        world.run()
        assert [result(ticket) for ticket in tickets] == ["done"] * len(tickets)
        assert all((array == value).all() for array, value in expected)
    if len(sets) == 1:
        assert all(order == world.executed[0] for order in world.executed)


@given(st.integers(2, 4), SEEDS, TUNED)
@settings(deadline=None)
def test_a_mismatch_is_the_same_error_everywhere_and_disturbs_nothing(size: int, seed: int, tuned: Settings) -> None:
    chance = random.Random(seed)
    world = SimulatedWorld(size, seed=seed, settings=tuned)
    everyone = tuple(range(size))
    base: dict[str, Any] = {"how": Reduction(ReduceOp.SUM, 1.0), "device": "cpu", "root": -1}
    odd: dict[str, Any] = {"how": Reduction(ReduceOp.MAX, 2.0), "device": "cuda", "root": 0}
    for turn in range(3):
        culprit, field = chance.randrange(size), chance.choice([*base, "shape", "dtype"])
        bad, good, sums = [], [], []
        for rank in everyone:
            wrong = rank == culprit
            fields = {**base, field: odd[field]} if wrong and field in base else base
            array = np.zeros(
                4 if wrong and field == "shape" else 3, "float64" if wrong and field == "dtype" else "float32"
            )
            buffer = buffer_of(array)
            request = Request(
                Kind.ALLREDUCE,
                "bad",
                (TensorSpec(buffer.dtype, buffer.shape),),
                everyone,
                line=f"r{rank}.py:1",
                **fields,
            )
            right = np.full(2, 1.0)
            for which in chance.sample(["bad", "good"], 2):
                if which == "bad":
                    bad.append(world.submit(rank, request, [buffer], [buffer]))
                else:
                    good.append(world.allreduce(rank, "good", right))
            sums.append(right)
        world.run()
        (text,) = {result(ticket) for ticket in bad}
        assert text.startswith("MismatchError") and all(f"r{rank}.py:1" in text for rank in everyone), (turn, text)
        assert {result(ticket) for ticket in good} == {"done"}
        assert all((array == size).all() for array in sums)


@given(st.integers(2, 4), SEEDS, st.booleans(), TUNED)
@settings(deadline=None)
def test_uneven_ranks_join(size: int, seed: int, active: bool, tuned: Settings) -> None:
    chance = random.Random(seed)
    world = SimulatedWorld(size, seed=seed, settings=tuned)
    steps = [chance.randrange(4) for _ in range(size)]
    arrays: dict[tuple[int, int], np.ndarray[Any, Any]] = {}
    at = [0] * size
    waiting: dict[int, MessageTicket] = {}
    joined: set[int] = set()
    while len(joined) < size or world.step():
        for rank in range(size):
            if (rank in waiting and not waiting[rank].done) or rank in joined:
                continue
            if at[rank] == steps[rank]:
                world.join(rank, average_active=active)
                joined.add(rank)
                continue
            array = arrays[rank, at[rank]] = np.full(2, float(rank + 1))
            op = ReduceOp.MIN if at[rank] % 2 else ReduceOp.AVERAGE
            waiting[rank] = world.allreduce(rank, f"step{at[rank]}", array, op=op)
            at[rank] += 1
        world.step()
    for (_, step), array in arrays.items():
        values = [rank + 1.0 for rank in range(size) if steps[rank] > step]
        average = sum(values) / (len(values) if active else size)
        np.testing.assert_allclose(array, min(values) if step % 2 else average)
    (last,) = {negotiator.joined.last for negotiator in world.ranks if negotiator.joined is not None}
    assert all(negotiator.joined is not None for negotiator in world.ranks)
    assert 0 <= last < size
    tickets = [world.allreduce(rank, "after", np.ones(1)) for rank in range(size)]
    world.run()
    assert {result(ticket) for ticket in tickets} == {"done"}


@given(st.integers(2, 4), SEEDS, st.integers(0, 60))
@settings(deadline=None)
def test_after_a_death_everything_ends_and_names_the_dead(size: int, seed: int, when: int) -> None:
    chance = random.Random(seed)
    world = SimulatedWorld(size, seed=seed)
    victim = chance.randrange(size)
    tickets: list[tuple[int, MessageTicket, np.ndarray[Any, Any]]] = []
    for rank in range(size):
        for name in chance.sample("abcdef", 6):
            array = np.ones(2)
            tickets.append((rank, world.allreduce(rank, name, array), array))
    for _ in range(when):
        world.step()
    world.kill(victim)
    world.run()
    for rank, ticket, array in tickets:
        if rank == victim:
            continue
        text = result(ticket)
        if text == "done":
            assert (array == size).all()
        else:
            assert text.startswith(
                f"PeerLostError: rank {victim} (host simulated, pid {10_000 + victim}) died: signal 9"
            )
            assert ticket.request.name in text
    if any(result(ticket) != "done" for rank, ticket, _ in tickets if rank != victim):
        survivor = (victim + 1) % size
        with pytest.raises(PeerLostError):
            world.allreduce(survivor, "later", np.ones(2))


@given(st.integers(3, 6), SEEDS, st.integers(0, 80), TUNED)
@settings(deadline=None)
def test_a_host_that_is_cut_off_ends_everything_for_one_reason(
    size: int, seed: int, when: int, tuned: Settings
) -> None:
    """Its ranks' last words arrive or not, and their ends are seen one by one; all others hear of the same one."""
    chance = random.Random(seed)
    world = SimulatedWorld(size, seed=seed, settings=tuned)
    lost = chance.sample(range(size), chance.randint(1, size - 1))
    left = [rank for rank in range(size) if rank not in lost]
    for turn in range(2):  # the second time by number
        tickets: list[tuple[int, MessageTicket, np.ndarray[Any, Any]]] = []
        for rank in range(size):
            for name in chance.sample("abcd", 4):
                array = np.full(2, float(rank))
                tickets.append((rank, world.allreduce(rank, name, array), array))
        if turn:
            for _ in range(when):
                world.step()
            world.cut(lost)
        world.run()
    told = set()
    for rank, ticket, array in tickets:
        if rank in left and (text := result(ticket)) == "done":
            assert (array == sum(range(size))).all()
        elif rank in left:
            told.add(text.partition(" died: the connection to its host broke")[0])
            assert ticket.request.name in text
    assert len(told) <= 1 and told <= {
        f"PeerLostError: rank {rank} (host simulated, pid {10_000 + rank})" for rank in lost
    }
    orders = [world.executed[rank] for rank in range(size)]
    longest = max(orders, key=len)
    assert all(order == longest[: len(order)] for order in orders)


@given(st.integers(2, 4), SEEDS)
@settings(deadline=None)
def test_leaving_fails_only_what_needs_the_one_who_left(size: int, seed: int) -> None:
    world = SimulatedWorld(size, seed=seed)
    before = [world.allreduce(rank, "before", np.ones(1)) for rank in range(size)]
    world.leave(size - 1)
    rest = tuple(range(size - 1))
    among = [world.allreduce(rank, "among", np.ones(1), members=rest) for rank in rest]
    late = [world.allreduce(rank, "late", np.ones(1)) for rank in rest]
    world.run()
    assert len({result(ticket).partition(":")[0] for ticket in before}) == 1  # done on all, or on none
    assert {result(ticket) for ticket in among} == {"done"}
    assert all(result(ticket).startswith("ShutDownError") for ticket in late)
    assert world.ranks[size - 1].left
    with pytest.raises(ShutDownError):
        world.allreduce(size - 1, "again", np.ones(1))


def test_a_name_in_flight_cannot_be_submitted_again() -> None:
    world = SimulatedWorld(2)
    world.allreduce(0, "x", np.ones(1), line="a.py:1")
    with pytest.raises(DuplicateNameError, match=r"a\.py:2 while the one submitted at a\.py:1"):
        world.allreduce(0, "x", np.ones(1), line="a.py:2")


def test_repeated_steps_are_announced_by_number() -> None:
    world = SimulatedWorld(2)
    for step in range(3):
        for rank in range(2):
            for i in range(50):
                world.allreduce(rank, f"layer{i}.weight.gradient", np.ones(4, "float32"))
        world._announce(0)
        size = len(world._to_hub[0][-1])
        assert (size > 2000) if step == 0 else (size < 200)
        world.run()


def test_groups_and_other_kinds_come_through() -> None:
    world = SimulatedWorld(3, seed=3)
    outcomes, grouped = [], []
    for rank in range(3):
        a, b = np.full(2, rank, "float32"), np.full(3, rank, "float32")
        grouped.append((a, b))
        world.allreduce(rank, "group", a, b)
        mine = np.full((rank + 1, 2), rank, "int64")
        request = Request(Kind.ALLGATHER, "allgather.x", (TensorSpec(DType.INT64, mine.shape),), (0, 1, 2))
        outcomes.append(world.submit(rank, request, [buffer_of(mine)]))
    world.run()
    assert all((a == 3).all() and (b == 3).all() for a, b in grouped)
    gathered = [np.frombuffer(ticket.result().memory[0], "int64").tolist() for ticket in outcomes]
    assert gathered == [[0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2]] * 3
    assert outcomes[0].result().received == ((16, 32, 48),)


def test_the_same_seed_gives_the_same_run() -> None:
    def order(seed: int) -> Any:
        world = SimulatedWorld(3, seed=seed)
        for rank in range(3):
            for i in range(10):
                world.allreduce(rank, f"t{i}", np.ones(1))
                world.step()
        world.run()
        return world.executed

    assert order(5) == order(5)
    assert len({str(order(seed)) for seed in range(10)}) > 1


def test_errors_can_be_raised_more_than_once() -> None:
    world = SimulatedWorld(2)
    tickets = [world.allreduce(rank, "x", np.ones(1 + rank)) for rank in range(2)]
    world.run()
    for _ in range(2):
        with pytest.raises(MismatchError):
            tickets[0].result()


def test_a_thousand_ranks_agree() -> None:
    size = 1024
    world = SimulatedWorld(size)
    arrays = [np.ones(1, "float32") for _ in range(size)]
    for rank in range(size):
        world.allreduce(rank, "x", arrays[rank])
        world._announce(rank)
    for rank in range(size):
        world._reach_hub(rank)
    world._decide()
    for rank in range(size):
        world._reach_rank(rank)
    for _ in range(2):
        world._waiting.clear()
        for rank in range(size):
            if world.ranks[rank].work:
                world._do_work(rank)
    assert all(array[0] == size for array in arrays)
