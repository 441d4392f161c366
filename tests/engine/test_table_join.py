"""join() in shared memory: ranks that run out of data stay in step with the others, whatever they left behind."""

from __future__ import annotations

import ctypes
import itertools
import threading
from typing import Any

import numpy as np
import pytest
from tests.engine.table_crew import DEADLINE_S, Crew, Rank, run

from hora.config.settings import Settings
from hora.engine import table
from hora.engine.backend import EventKind
from hora.engine.tablefault import Status
from hora.errors import HorovodInternalError, MismatchError
from hora.types import Kind, ReduceOp


def test_a_join_that_is_waited_for_in_slices_joins_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two slices its round may end, and the next begin: ranks would be out of step for good."""
    monkeypatch.setattr(table, "_SLICE_US", 1)

    def body(me: Rank) -> list[int]:
        last = []
        for epoch in range(150):
            for step in range(1 + (epoch + me.rank) % 3):
                present = [r for r in range(3) if 1 + (epoch + r) % 3 > step]
                array = np.full(3, 100.0 * epoch + 10 * step + me.rank)
                me.allreduce(array, f"step {step}").wait()
                np.testing.assert_array_equal(array, np.full(3, sum(100.0 * epoch + 10 * step + r for r in present)))
            last.append(me.backend.join(False))
        return last

    first, *others = run(3, body)
    assert others == [first, first]
    assert first == [(2 - epoch) % 3 for epoch in range(150)]  # whose number of steps is 3


@pytest.mark.parametrize("joins", [0, 1])
@pytest.mark.parametrize("kind", [Kind.ALLGATHER, Kind.BROADCAST, Kind.ALLTOALL, Kind.REDUCESCATTER])
@pytest.mark.parametrize("count", [2, 6000])
def test_what_needs_all_is_refused_whoever_has_joined(joins: int, kind: Kind, count: int) -> None:
    def body(me: Rank) -> None:
        if me.rank != joins:
            me.until_joined(joins)
            more: dict[str, Any] = {"root": me.rank} if kind is Kind.BROADCAST else {}
            if kind is Kind.ALLTOALL:
                more = {"splits": (count // 2, count // 2)}
            outputs = [np.empty(count // 2)] if kind is Kind.REDUCESCATTER else None
            with pytest.raises(HorovodInternalError, match=f"rank {joins} has joined"):
                me.submit(kind, "x", [np.ones(count)], outputs, **more).wait()
        assert me.backend.join(False) == 1 - joins

    run(2, body)


@pytest.mark.parametrize("count", [3, 5000])
def test_averages_are_over_active_ranks_if_one_of_the_absent_said_so(count: int) -> None:
    """In any order of True and False, one round of join after another: none is remembered."""

    def body(me: Rank) -> None:
        for said in (*itertools.product((False, True), repeat=me.size), (False,) * me.size):
            for step in range(me.rank + 1):
                mean = np.full(count, 12.0)
                me.allreduce(mean, "mean", op=ReduceOp.AVERAGE).wait()
                brought = me.size - step
                want = 12.0 if any(said[:step]) else 12.0 * brought / me.size
                np.testing.assert_array_equal(mean, np.full(count, want), f"{said} {step}")
            assert me.backend.join(said[me.rank]) == me.size - 1

    run(4, body)


@pytest.mark.parametrize("count", [3, 5000, 200_003])
@pytest.mark.parametrize("early", [0, 2])
def test_what_was_submitted_and_not_waited_for_before_join_is_carried_out(count: int, early: int) -> None:
    """By a rank that joins before the others come to it, and by the last to join, who had no time to wait."""

    def body(me: Rank) -> None:
        for epoch in range(5):
            arrays = {name: np.full(count, 10.0 * epoch + me.rank) for name in ("a", "b")}
            if me.rank != early:
                me.until_joined(early)
            tickets = [me.allreduce(array, name) for name, array in arrays.items()]
            me.backend.join(False)
            for ticket in tickets:
                ticket.wait()
            for array in arrays.values():
                np.testing.assert_array_equal(array, np.full(count, 30.0 * epoch + 3))
            me.barrier()

    run(3, body)


@pytest.mark.parametrize("shapes", [(3, 5000), (5000, 3), (5000, 200_003), (70_000, 2500)])
def test_who_is_back_from_join_may_bring_another_shape_under_the_same_name(shapes: tuple[int, int]) -> None:
    """While the others may still carry out the last round without it."""

    def body(me: Rank) -> None:
        for epoch in range(40):
            count = shapes[epoch % 2]
            for step in range(1 + 2 * ((epoch + me.rank) % 3)):
                present = [r for r in range(3) if 1 + 2 * ((epoch + r) % 3) > step]
                array = np.full(count, float(epoch + step + me.rank))
                me.allreduce(array, "x").wait()
                np.testing.assert_array_equal(array, np.full(count, float(sum(epoch + step + r for r in present))))
            me.backend.join(False)

    run(3, body)


def test_a_mismatch_among_those_who_are_left_is_one() -> None:
    def body(me: Rank) -> None:
        if me.rank:
            me.until_joined(0)
            with pytest.raises(MismatchError, match="shapes"):
                me.allreduce(np.ones(2 + me.rank), "x").wait()
        me.backend.join(False)

    run(3, body)


@pytest.mark.parametrize("count", [3, 5000])
def test_an_adasum_of_fewer_ranks_than_asked_for_is_refused(count: int) -> None:
    """Also if those who are left are a power of two: it is another result."""

    def body(me: Rank) -> str:
        text = ""
        if me.rank > 1:
            for joined in (0, 1):
                me.until_joined(joined)
            with pytest.raises(HorovodInternalError) as caught:
                me.allreduce(np.ones(count), "ada", op=ReduceOp.ADASUM).wait()
            text = str(caught.value)
        me.backend.join(False)
        me.allreduce(np.ones(count), "ada", op=ReduceOp.ADASUM).wait()
        return text

    *_, first, second = run(4, body)
    assert first == second
    assert "ranks 0, 1 have joined" in first and "Adasum" in first, first


@pytest.mark.parametrize(("fusion_bytes", "batch"), [(128 << 20, 3), (0, 1), (2 * 40_000, 2)])
def test_what_is_agreed_on_together_is_carried_out_together_up_to_the_bound(fusion_bytes: int, batch: int) -> None:
    """A join agrees on all three at once, so that no rank can be quicker than the other."""
    gate = threading.Barrier(2)

    def body(me: Rank) -> list[int]:
        me.backend.trace(True)
        if me.rank == 1:
            gate.wait(DEADLINE_S)
            me.backend.join(False)
            return []
        tickets = [me.allreduce(np.ones(10_000, "float32"), name) for name in "abc"]
        gate.wait(DEADLINE_S)
        for ticket in tickets:
            ticket.wait()
        me.backend.join(False)
        return [event.detail for event in me.backend.events() if event.what is EventKind.BEGIN]

    largest = max(run(2, body, Settings(fusion_bytes=fusion_bytes))[0])
    assert largest == batch


@pytest.mark.parametrize("both_join", [False, True])
def test_who_has_joined_is_waited_for_until_it_has_its_own_results(both_join: bool) -> None:
    """Rounds without it would overwrite what it has not fetched yet; and join does not end while one is open."""
    with Crew(2) as crew:
        zero, one = crew.ranks
        lib, last = zero.backend._lib, ctypes.c_int()
        first = np.full(3, 1.0)
        ticket = zero.allreduce(first, "x")
        one.allreduce(np.full(3, 10.0), "x").wait()
        joined = lib.join(zero.backend._core, 0)  # and does not come to its results yet
        array = np.full(3, 100.0)
        alone = one.allreduce(array, "x")
        assert not alone.done()
        if both_join:
            assert lib.join(one.backend._core, 0) == joined
            assert lib.join_wait(one.backend._core, joined, 0, ctypes.byref(last)) == Status.PENDING
        ticket.wait()
        np.testing.assert_array_equal(first, np.full(3, 11.0))
        answer = lib.join_wait(zero.backend._core, joined, 0, ctypes.byref(last))
        assert answer == (Status.OK if both_join else Status.PENDING)
        alone.wait()
        np.testing.assert_array_equal(array, np.full(3, 100.0))
        if not both_join:
            assert lib.join(one.backend._core, 0) == joined
        for rank in crew.ranks:
            assert lib.join_wait(rank.backend._core, joined, 0, ctypes.byref(last)) == Status.OK
        assert last.value == 1


@pytest.mark.parametrize("count", [3, 5000])
def test_who_has_joined_is_known_to_be_through_after_four_billion_rounds(count: int) -> None:
    """Of a name that both had used; nothing may depend on less than the whole number of a round."""
    gate = threading.Barrier(2)

    def body(me: Rank) -> None:
        me.allreduce(np.ones(count), "x").wait()
        gate.wait(DEADLINE_S)
        if me.rank == 0:
            me.set_round((1 << 32) - 1)
        gate.wait(DEADLINE_S)
        me.allreduce(np.ones(count), "x").wait()
        for step in range(3 if me.rank == 0 else 0):
            array = np.full(count, float(step))
            me.allreduce(array, "x").wait()
            np.testing.assert_array_equal(array, np.full(count, float(step)))
        me.backend.join(False)

    run(2, body)
