"""Agreement and movement in shared memory: any order, any mismatch, any set; against numpy."""

from __future__ import annotations

import ctypes
import itertools
import os
import random
import re
import struct
import threading
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.table_crew import DEADLINE_S, NEXT_STAMP_AT, Crew, Rank, run, until

from hora.config.settings import Settings
from hora.engine.backend import EventKind
from hora.engine.table import TableBackend
from hora.errors import (
    DeadlockError,
    DuplicateNameError,
    HorovodInternalError,
    MismatchError,
    PeerLostError,
    ShutDownError,
)
from hora.transport import shm
from hora.types import Kind, ReduceOp
from hora.wire.messages import Peer

SIZES = [1, 7, 2048, 2049, 5000, 65536 * 2 + 3, 1_000_003]  # inline, one chunk, several


def values(rank: int, count: int, dtype: str = "float32") -> np.ndarray[Any, Any]:
    return np.random.default_rng([rank, count]).normal(size=count).astype(dtype)


def total(size: int, count: int, members: tuple[int, ...] | None = None) -> np.ndarray[Any, Any]:
    ranks = members or tuple(range(size))
    result = values(ranks[0], count)
    for rank in ranks[1:]:
        result += values(rank, count)
    return result


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("count", SIZES)
def test_allreduce_is_the_sum_in_rank_order(size: int, count: int) -> None:
    def body(me: Rank) -> None:
        array = values(me.rank, count)
        me.allreduce(array, "x").wait()
        np.testing.assert_array_equal(array, total(size, count))

    run(size, body)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_memory_shared_with_the_peers_is_reduced_in_place(size: int) -> None:
    def body(me: Rank) -> None:
        for count in (5000, 300_001):
            array = np.frombuffer(me.backend.allocate(4 * count), "float32")
            array[:] = values(me.rank, count)
            me.allreduce(array, f"shared{count}").wait()
            np.testing.assert_array_equal(array, total(size, count))
            mixed = array.copy() if me.rank == 0 else array  # one rank's buffer is ordinary memory
            mixed[:] = values(me.rank, count)
            me.allreduce(mixed, f"mixed{count}").wait()
            np.testing.assert_array_equal(mixed, total(size, count))

    run(size, body)


@given(st.integers(2, 4), st.integers(0, 1 << 30), st.sampled_from([0, 4096, 128 << 20]))
@settings(max_examples=25, deadline=None)
def test_any_order_gives_the_right_sums(size: int, seed: int, fusion_bytes: int) -> None:
    """Every rank submits the same operations, of several types and sets, in its own order, and waits in another."""
    plan = random.Random(seed)
    sets = [tuple(range(size)), tuple(sorted(plan.sample(range(size), plan.randint(1, size)))), (plan.randrange(size),)]
    jobs = [(i, plan.choice(sets), plan.choice([1, 100, 3000, 70_001]), plan.choice(["float32", "float64", "int32"]))
            for i in range(40)]  # fmt: skip

    def body(me: Rank) -> None:
        mine = [job for job in jobs if me.rank in job[1]]
        random.Random(seed + me.rank).shuffle(mine)
        arrays = {i: (np.arange(count) * (me.rank + 1) + i).astype(dtype) for i, _, count, dtype in mine}
        tickets = {i: me.allreduce(arrays[i], f"job{i}", members=members) for i, members, _, _ in mine}
        random.Random(seed - me.rank).shuffle(mine)
        for i, members, count, dtype in mine:
            tickets[i].wait()
            want = sum((np.arange(count) * (r + 1) + i) for r in members).astype(dtype)
            np.testing.assert_array_equal(arrays[i], want)

    run(size, body, Settings(fusion_bytes=fusion_bytes))


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("rows", [0, 1, 5, 30_000])
def test_exchanges_move_the_right_rows(size: int, rows: int) -> None:
    def body(me: Rank) -> None:
        mine = values(me.rank, (rows + me.rank) * 3).reshape(-1, 3)
        outcome = me.submit(Kind.ALLGATHER, "gather", [mine]).wait()
        got = np.frombuffer(outcome.memory[0], "float32").reshape(-1, 3)
        np.testing.assert_array_equal(
            got, np.concatenate([values(r, (rows + r) * 3).reshape(-1, 3) for r in range(size)])
        )
        assert outcome.received == (tuple((rows + r) * 12 for r in range(size)),)

        splits = {r: [(rows // size) * ((r + to) % 3) for to in range(size)] for r in range(size)}
        sent = {r: values(r + 10, sum(splits[r]) * 2).reshape(-1, 2) for r in range(size)}
        outcome = me.submit(Kind.ALLTOALL, "exchange", [sent[me.rank]], splits=tuple(splits[me.rank])).wait()
        parts = [sent[r][sum(splits[r][: me.rank]) : sum(splits[r][: me.rank + 1])] for r in range(size)]
        np.testing.assert_array_equal(np.frombuffer(outcome.memory[0], "float32").reshape(-1, 2), np.concatenate(parts))

        for root in range(size):
            copy = values(me.rank, rows * 2)
            me.submit(Kind.BROADCAST, f"from{root}", [copy], root=root).wait()
            np.testing.assert_array_equal(copy, values(root, rows * 2))

        whole = values(me.rank, rows * 3).reshape(-1, 3)
        bounds = np.cumsum([0, *(rows // size + (r < rows % size) for r in range(size))])
        part = np.empty((bounds[me.rank + 1] - bounds[me.rank], 3), "float32")
        me.submit(Kind.REDUCESCATTER, "scatter", [whole], [part], op=ReduceOp.SUM).wait()
        want = total(size, rows * 3).reshape(-1, 3)[bounds[me.rank] : bounds[me.rank + 1]]
        np.testing.assert_array_equal(part, want)

    run(size, body)


@pytest.mark.parametrize("count", [10, 50_000])
def test_a_group_is_one_operation_of_mixed_types(count: int) -> None:
    def body(me: Rank) -> None:
        group = [np.full(count, me.rank + 1, t) for t in ("float32", "int64", "float32", "float64", "int8")]
        me.submit(Kind.ALLREDUCE, "group", group, grouped=True).wait()
        for array in group:
            np.testing.assert_array_equal(array, np.full(count, 6, array.dtype))

    run(3, body)


@pytest.mark.parametrize("count", [5, 40_000])
def test_adasum_against_the_formula(count: int) -> None:
    def combine(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return a * (1 - a @ b / (2 * (a @ a))) + b * (1 - a @ b / (2 * (b @ b)))

    def body(me: Rank) -> None:
        for dtype, rtol in (("float64", 1e-12), ("float32", 1e-6), ("float16", 1e-3)):
            x = [2.0 * values(r, count, dtype).astype("float64") for r in range(4)]
            want = 3.0 * combine(combine(x[0], x[1]), combine(x[2], x[3]))
            array = values(me.rank, count, dtype)
            more: dict[str, Any] = {"prescale": 2.0, "postscale": 3.0}
            me.allreduce(array, f"ada {dtype}", op=ReduceOp.ADASUM, **more).wait()
            np.testing.assert_allclose(array, want.astype(dtype), rtol=rtol, atol=rtol)

    run(4, body)


def test_adasum_keeps_to_its_own_memory() -> None:
    """Its workspace lies between tensors of the same arena: here, where one was that has just gone."""

    def body(me: Rank) -> None:
        gone, neighbour = me.backend.allocate(8 * 40_000), me.backend.allocate(1 << 16)
        watched = np.frombuffer(neighbour, "uint8")
        watched[:] = 7
        del gone
        me.allreduce(np.ones(40_000), "ada", op=ReduceOp.ADASUM).wait()
        assert (watched == 7).all()

    run(2, body)


FIELDS: list[dict[str, Any]] = [
    {"dtype": ["float32", "float64", "int32"]},
    {"count": [3, 4, 70_000]},
    {"op": [ReduceOp.SUM, ReduceOp.MAX, ReduceOp.AVERAGE]},
    {"prescale": [1.0, 2.0, 0.5]},
    {"postscale": [1.0, 3.0]},
    {"device": ["cpu", "cuda"]},
]


def test_a_thousand_random_mismatches_all_raise_on_all_ranks() -> None:
    """Each time some ranks differ in one field; all get the same text with every rank in it; nothing else breaks."""
    size, times = 3, 1000

    def body(me: Rank) -> list[str]:
        texts = []
        for i in range(times):
            plan = random.Random(i)
            field = plan.choice(FIELDS)
            (name,) = field
            choices = [plan.choice(field[name]) for _ in range(size)]
            if len(set(choices)) == 1:
                choices[plan.randrange(size)] = next(c for c in field[name] if c != choices[0])
            more = {name: choices[me.rank]}
            array = np.ones(more.pop("count", 3), more.pop("dtype", "float32"))
            with pytest.raises(MismatchError) as caught:
                me.allreduce(array, f"wrong{plan.randint(0, 3)}", **more).wait()
            texts.append(str(caught.value))
            np.testing.assert_array_equal(array, np.ones_like(array))  # untouched
            right = np.full(3, me.rank, "float32")
            me.allreduce(right, "right").wait()
            np.testing.assert_array_equal(right, np.full(3, 3, "float32"))
        return texts

    first, *others = run(size, body)
    for i, text in enumerate(first):
        assert all(other[i] == text for other in others)
        named = {int(r) for row in re.findall(r"^  ranks? ([0-9, ]+)", text, re.M) for r in row.split(",")}
        assert named == set(range(size)), text


@pytest.mark.parametrize("count", [4, 5000])
def test_a_name_in_flight_cannot_be_used_again(count: int) -> None:
    def body(me: Rank) -> None:
        array = np.ones(count, "float32")
        if me.rank == 0:
            ticket = me.allreduce(array, "twice")
            with pytest.raises(DuplicateNameError, match="twice"):
                me.allreduce(array.copy(), "twice")
        me.barrier()
        if me.rank == 1:
            ticket = me.allreduce(array, "twice")
        ticket.wait()
        np.testing.assert_array_equal(array, np.full(count, 2, "float32"))

    run(2, body)


def test_a_rank_that_has_joined_contributes_nothing() -> None:
    def body(me: Rank) -> int:
        for step in range(3 + me.rank):  # rank 0 has 3 batches, rank 1 has 4, rank 2 has 5
            present = [r for r in range(3) if step < 3 + r]
            for count in (3, 5000):
                for op, fold in ((ReduceOp.SUM, sum), (ReduceOp.MIN, min), (ReduceOp.PRODUCT, np.prod)):
                    array = np.full(count, me.rank + 2.0)
                    me.allreduce(array, f"{op.name}{count}", op=op).wait()
                    np.testing.assert_array_equal(array, np.full(count, float(fold([r + 2 for r in present]))))
                mean = np.full(count, me.rank + 2.0)
                me.allreduce(mean, f"mean{count}", op=ReduceOp.AVERAGE).wait()
                np.testing.assert_array_equal(mean, np.full(count, sum(r + 2 for r in present) / 3))
        if me.rank == 2:
            with pytest.raises(HorovodInternalError, match="joined"):
                me.submit(Kind.ALLGATHER, "late", [np.ones(2)]).wait()
        last = me.backend.join(False)
        after = np.ones(2)  # and then all are back
        me.allreduce(after, "after").wait()
        np.testing.assert_array_equal(after, np.full(2, 3.0))
        return last

    assert run(3, body) == [2, 2, 2]


def test_what_was_submitted_before_joining_is_still_right_after_many_rounds_without_this_rank() -> None:
    """The others go on under the same name while this rank has not yet asked for its result."""

    def body(me: Rank) -> None:
        first = np.full(3, me.rank + 1.0)
        ticket = me.allreduce(first, "x")
        if me.rank == 0:
            me.backend.join(False)
            ticket.wait()
        else:
            ticket.wait()
            for step in range(200):
                array = np.full(3, 10.0 * me.rank + step)
                me.allreduce(array, "x").wait()
                np.testing.assert_array_equal(array, np.full(3, 30.0 + 2 * step))
            me.backend.join(False)
        np.testing.assert_array_equal(first, np.full(3, 6.0))

    run(3, body)


def test_the_average_over_active_ranks() -> None:
    def body(me: Rank) -> None:
        if me.rank == 0:
            me.backend.join(True)
            return
        me.until_joined(0)
        for count in (3, 5000):
            array = np.full(count, me.rank * 1.0)
            me.allreduce(array, f"mean{count}", op=ReduceOp.AVERAGE).wait()
            np.testing.assert_array_equal(array, np.full(count, 1.5))
        me.backend.join(True)

    run(3, body)


def test_who_leaves_fails_those_who_wait_for_him_and_no_others() -> None:
    def body(me: Rank) -> None:
        me.barrier("start")
        if me.rank == 2:
            me.backend.leave()
            return
        with pytest.raises(ShutDownError, match="rank 2"):
            me.allreduce(np.ones(3), "needs all").wait()
        pair = np.ones(3)
        me.allreduce(pair, "pair", members=(0, 1)).wait()
        np.testing.assert_array_equal(pair, np.full(3, 2.0))

    run(3, body)


def test_who_leaves_without_submitting_is_named() -> None:
    with Crew(11) as crew:
        ticket = crew.ranks[0].allreduce(np.ones(3), "x")
        crew.ranks[10].backend.leave()
        with pytest.raises(ShutDownError, match="'x' cannot be done: rank 10 has shut Hora down without submitting it"):
            ticket.wait()


def test_a_name_that_is_used_all_the_time_keeps_its_place() -> None:
    """However many others come and go: made anew each time, it would be slow."""
    with Crew(1, Settings(cache_capacity=64)) as crew:
        (me,) = crew.ranks
        for step in range(300):
            for name in ("hot", f"cold {step}"):
                me.allreduce(np.ones(3), name).wait()
        (places,) = struct.unpack_from("<Q", crew.memory, NEXT_STAMP_AT)
        assert places <= 303  # at first, all are as new


def test_what_no_rank_has_is_said_of_no_rank() -> None:
    with Crew(2) as crew:
        lib, core, room = crew.backends[0]._lib, crew.backends[0]._core, ctypes.create_string_buffer(64)
        for rank in (-1, 2):
            assert (lib.state(core, rank), lib.status(core, rank, room, 64), lib.said(core, rank, room, 64)) == (
                0,
                0,
                0,
            )
            lib.mark_dead(core, rank, b"nobody")
        assert lib.dead(core) == -1 and lib.state(core, 1) == 1
        crew.backends[0].say("here")
        assert lib.said(core, 0, room, 64) == 4 and room.value == b"here"


def test_every_thread_that_submits_must_wait_before_a_rank_is_blocked() -> None:
    with Crew(2) as crew:
        zero = crew.ranks[0]
        done, submitted = threading.Event(), threading.Semaphore(0)

        def submit_and_live_on(name: str) -> None:
            zero.submit(Kind.BARRIER, name, [], members=(0,)).wait()
            submitted.release()
            done.wait(DEADLINE_S)

        others = [threading.Thread(target=submit_and_live_on, args=(f"own {i}",)) for i in range(2)]
        for thread in others:
            thread.start()
            assert submitted.acquire(timeout=DEADLINE_S)
        waiter = threading.Thread(target=lambda: zero.allreduce(np.ones(3), "x").wait())
        waiter.start()
        until(lambda: zero.backend.snapshot().ranks[0].waiting_on == (("x", (0, 1)),))
        assert not zero.backend.snapshot().ranks[0].blocked
        done.set()
        for thread in others:
            thread.join(DEADLINE_S)
        until(lambda: zero.backend.snapshot().ranks[0].blocked)
        crew.ranks[1].allreduce(np.ones(3), "x").wait()
        waiter.join(DEADLINE_S)


def test_a_verdict_from_outside_ends_a_wait_on_all_ranks() -> None:
    def body(me: Rank) -> None:
        if me.rank == 2:
            pending = next(iter(_until_pending(me, 2)))
            assert (pending.name, pending.missing) == ("never", (2,))
            me.backend.fail(pending, "deadlock", "you wait in vain")
            return
        with pytest.raises(DeadlockError, match="in vain"):
            me.allreduce(np.ones(3), "never").wait()

    run(3, body)


def test_a_rank_that_was_given_up_is_told_so_and_the_others_name_it() -> None:
    def body(me: Rank) -> None:
        me.barrier("start")
        if me.rank == 0:
            me.backend.give_up(2, "it has not answered for 600 s")
        error, text = (
            (
                ShutDownError,
                "^'after' cannot be done: the others have given rank 2 up: it has not answered for 600 s. They",
            )
            if me.rank == 2
            else (PeerLostError, "^rank 2 .* died: it has not answered for 600 s")
        )
        with pytest.raises(error, match=text):
            while True:
                me.allreduce(np.ones(3), "after").wait()

    run(3, body)


def test_a_rank_that_was_given_up_blames_nobody_for_not_submitting() -> None:
    """When it goes on, its own monitor may look before its waits do."""

    def body(me: Rank) -> None:
        if me.rank == 1:
            return
        ticket = me.allreduce(np.ones(3), "never")
        (pending,) = me.backend.snapshot().pending
        me.backend.give_up(0, "it has not answered for 600 s")
        me.backend.fail(pending, "stall", "rank 1 did not submit 'never' within 600 s")
        with pytest.raises(ShutDownError, match="the others have given rank 0 up"):
            ticket.wait()

    run(2, body)


def test_a_rank_that_ends_all_waits_itself_was_not_given_up() -> None:
    def body(me: Rank) -> None:
        me.barrier("start")
        if me.rank == 0:
            me.backend.abort("it saw no way on")
        with pytest.raises(PeerLostError, match=r"^rank 0 .* died: it saw no way on"):
            while True:
                me.allreduce(np.ones(3), "after").wait()

    run(2, body)


def _until_pending(me: Rank, arrivals: int) -> Any:
    import time

    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        pending = me.backend.snapshot().pending
        if pending and len(pending[0].requests) == arrivals:
            return pending
    raise AssertionError("nothing became pending")


def test_more_names_than_the_table_keeps() -> None:
    """Every step has new names: places are used again, and results stay right."""

    def body(me: Rank) -> None:
        for step in range(2000):
            array = np.full(3, me.rank + step, "float64")
            me.allreduce(array, f"step {step}").wait()
            np.testing.assert_array_equal(array, np.full(3, 2.0 * step + 1))

    run(2, body, Settings(cache_capacity=64))


def test_seventeen_thousand_names_in_a_table_of_sixteen() -> None:
    """Some hundred in flight, so that places are given away beside others that are in use."""

    def body(me: Rank) -> None:
        for step in range(0, 17_000, 170):
            arrays = [np.full(2, step + i + me.rank) for i in range(170)]
            tickets = [me.allreduce(array, f"name {step + i}") for i, array in enumerate(arrays)]
            for ticket in tickets:
                ticket.wait()
            np.testing.assert_array_equal(np.stack(arrays)[:, 0], 2 * np.arange(step, step + 170) + 1)

    run(2, body, Settings(cache_capacity=64))


def test_overlapping_sets_keep_out_of_each_others_memory() -> None:
    """Ranks that run ahead, where sums are made in place and need no barrier, do not hide one that still reads."""
    pair, shared, end, steps = (0, 3), 4096, time.monotonic() + 2, list[int]()

    def body(me: Rank) -> None:
        if me.rank == 2:  # always behind
            os.sched_setscheduler(threading.get_native_id(), os.SCHED_IDLE, os.sched_param(0))
        memory = {name: np.frombuffer(me.backend.allocate(4 * shared), "float32") for name in "cde"}
        memory |= {"a": np.empty(65_536, "float32"), "b": np.empty(1 << 20, "float32")}
        for step in itertools.count(1):
            if me.rank == 0 and time.monotonic() < end:  # for a while, and the same number of times on all ranks
                steps.append(step)
            memory["a"][:] = step * (me.rank + 1)
            memory["b"][:] = -1e6
            for name in "cde":
                memory[name][:] = 1
            me.barrier()
            if len(steps) < step:
                return
            tickets = [me.allreduce(memory["a"], "a")]
            if me.rank in pair:
                tickets.append(me.allreduce(memory["b"], "b", members=pair))
            tickets += [me.allreduce(memory[name], name) for name in "cde"]
            for ticket in tickets:
                ticket.wait()
            assert (memory["a"] == step * 10).all(), (step, np.unique(memory["a"]))
            assert me.rank not in pair or (memory["b"] == -2e6).all()
            assert all((memory[name] == 4).all() for name in "cde")

    run(4, body, Settings(fusion_bytes=0, cycle_time_ms=0.0))


@pytest.mark.parametrize("size", [2, 3])
def test_large_broadcasts_in_flight_together(size: int) -> None:
    """They are carried out one by one: only sums can be fused."""

    def body(me: Rank) -> None:
        for step in range(30):
            arrays = [np.full(50_000, 10 * step + me.rank + i, "float32") for i in range(4)]
            tickets = [me.submit(Kind.BROADCAST, f"b{i}", [array], root=i % size) for i, array in enumerate(arrays)]
            for i, ticket in enumerate(tickets):
                ticket.wait()
                assert (arrays[i] == 10 * step + i % size + i).all()

    run(size, body)


@pytest.mark.parametrize("count", [3, 5000])
def test_a_name_that_was_used_four_billion_times(count: int) -> None:
    gate = threading.Barrier(2)

    def body(me: Rank) -> None:
        for step in range(8):
            array = np.full(count, float(step + me.rank))
            me.allreduce(array, "x").wait()
            np.testing.assert_array_equal(array, np.full(count, 2.0 * step + 1))
            if step == 1:
                gate.wait(DEADLINE_S)
                if me.rank == 0:
                    me.set_round((1 << 32) - 4)
                gate.wait(DEADLINE_S)

    run(2, body)


def test_what_nobody_waits_for_is_carried_out_too() -> None:
    """Whoever only asks whether it is done does not carry it out; the thread behind does, every time."""

    def body(me: Rank) -> None:
        for step in range(200):
            array = np.full(5000, float(step + me.rank))
            ticket = me.allreduce(array, "x")
            until(ticket.done)
            ticket.wait()
            np.testing.assert_array_equal(array, np.full(5000, 2.0 * step + 1))

    run(2, body, Settings(cycle_time_ms=0.0))


def test_many_operations_in_flight_at_once() -> None:
    def body(me: Rank) -> None:
        arrays = [np.full(1 + i % 3000, me.rank, "float32") for i in range(3000)]
        order = list(range(3000))
        random.Random(me.rank).shuffle(order)
        tickets = {i: me.allreduce(arrays[i], f"many{i}") for i in order}
        for i in range(3000):
            tickets[i].wait()
            assert arrays[i][0] == arrays[i][-1] == 1

    run(2, body, Settings(cache_capacity=64))


def test_the_same_bits_in_every_run() -> None:
    def body(me: Rank) -> bytes:
        array = values(me.rank, 200_003)
        me.allreduce(array, "x", op=ReduceOp.AVERAGE).wait()
        return array.tobytes()

    assert len({*run(3, body), *run(3, body)}) == 1


def test_memory_of_another_generation_is_refused() -> None:
    segment = shm.create_segment(1, 7, Settings())
    try:
        with pytest.raises(ShutDownError, match="generation 7, this worker is of 8"):
            TableBackend(segment.fd, 0, [Peer(0, 0, os.getpid(), "here")], Settings(), generation=8)
    finally:
        segment.close()


@pytest.mark.parametrize(
    ("status", "told"), [("signal 9 (SIGKILL)", "signal 9 (SIGKILL)"), ("", "its process ended without shutdown()")]
)
def test_a_peer_that_is_lost_is_named_with_how_it_ended(status: str, told: str) -> None:
    def body(me: Rank) -> None:
        if me.rank == 1:
            me.backend.give_up(1, status)
            return
        with pytest.raises(PeerLostError, match=rf"rank 1 .* died: {re.escape(told)}"):
            me.allreduce(np.ones(3), "x").wait()

    run(2, body)


def test_memory_that_was_given_back_is_given_out_again() -> None:
    with Crew(1) as crew:
        first = crew.backends[0].allocate(1 << 20)
        address = ctypes.addressof(first)
        del first
        assert ctypes.addressof(crew.backends[0].allocate(1 << 20)) == address


def test_who_helps_reduces_in_place_and_the_thread_behind_waits_a_cycle() -> None:
    """The first memory of an arena, too; what goes through slots is left to the thread, even for a whole second."""
    with Crew(2, Settings(cycle_time_ms=1000.0)) as crew:
        shared = [np.frombuffer(backend.allocate(40_000), "float64") for backend in crew.backends]
        began = time.monotonic()
        plain = [me.allreduce(np.ones(5000), "slots") for me in crew.ranks]
        while time.monotonic() < began + 0.2:
            assert not plain[0].done() or time.monotonic() > began + 0.9
        for ticket in plain:
            until(ticket.done)
            ticket.wait()
        began = time.monotonic()
        for me, array in zip(crew.ranks, shared, strict=True):
            array[:] = me.rank + 1
        placed = [me.allreduce(array, "in place") for me, array in zip(crew.ranks, shared, strict=True)]
        for backend in crew.backends:
            backend.help()
        assert all(ticket.done() for ticket in placed) or time.monotonic() > began + 0.9
        for ticket, array in zip(placed, shared, strict=True):
            ticket.wait()
            np.testing.assert_array_equal(array, np.full(5000, 3.0))
        del shared, array


@pytest.mark.parametrize("count", [3, 5000])
def test_a_timeline_has_the_arrival_of_every_rank(count: int) -> None:
    def body(me: Rank) -> set[tuple[EventKind, int]]:
        me.backend.trace(True)
        me.barrier("all trace")
        me.backend.events()
        me.allreduce(np.ones(count), "x").wait()
        return {(event.what, event.rank) for event in me.backend.events() if event.request.name == "x"}

    for rank, found in enumerate(run(3, body)):
        ours = {(what, rank) for what in (EventKind.SUBMITTED, EventKind.AGREED, EventKind.END)}
        assert ours | {(EventKind.ARRIVED, other) for other in range(3)} <= found


def test_more_operations_than_are_carried_out_together() -> None:
    gate = threading.Barrier(2)

    def body(me: Rank) -> None:
        arrays = [np.full(2100, float(i + me.rank), "float32") for i in range(600)]
        tickets = [me.allreduce(array, f"x{i}") for i, array in enumerate(arrays)]
        gate.wait(DEADLINE_S)
        for i, (array, ticket) in enumerate(zip(arrays, tickets, strict=True)):
            ticket.wait()
            np.testing.assert_array_equal(array, np.full(2100, 2.0 * i + 1, "float32"))

    run(2, body, Settings(cycle_time_ms=1000.0))
