"""Agreement as a state machine: readiness, mismatches, joins, departures, and the memory of what was agreed."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hora.engine.agree import (
    JOIN,
    Agreement,
    AllJoined,
    Decision,
    OperationFailed,
    OperationReady,
    OperationSuspicious,
    received_bytes,
)
from hora.engine.request import Request, TensorSpec
from hora.types import DType, Kind, ReduceOp, Reduction


def make(name: str = "x", members: tuple[int, ...] = (0, 1, 2), count: int = 4, **fields: Any) -> Request:
    fields.setdefault("kind", Kind.ALLREDUCE)
    fields.setdefault("segments", (TensorSpec(DType.FLOAT32, (count,)),))
    return Request(name=name, members=members, **fields)


def arrive_all(agreement: Agreement, request: Request | int, ranks: tuple[int, ...] = (0, 1, 2)) -> list[Decision]:
    return [decision for rank in ranks for decision in agreement.arrive(rank, request, 0.0)]


def one_ready(decisions: list[Decision]) -> OperationReady:
    (decision,) = decisions
    assert isinstance(decision, OperationReady)
    return decision


def one_failure(decisions: list[Decision]) -> OperationFailed:
    (decision,) = decisions
    assert isinstance(decision, OperationFailed)
    return decision


def test_ready_when_all_members_have_arrived_in_any_order() -> None:
    agreement = Agreement(3)
    assert agreement.arrive(2, make(), 0.0) == []
    assert agreement.arrive(0, make(), 0.0) == []
    ready = one_ready(agreement.arrive(1, make(), 0.0))
    assert ready.contributors == (0, 1, 2) and ready.divisor == 3 and ready.request == make()


def test_the_same_name_on_two_sets_is_two_operations() -> None:
    agreement = Agreement(3)
    assert agreement.arrive(0, make(members=(0, 1)), 0.0) == []
    assert agreement.arrive(0, make(members=(0, 2)), 0.0) == []
    assert one_ready(agreement.arrive(2, make(members=(0, 2)), 0.0)).members == (0, 2)
    assert one_ready(agreement.arrive(1, make(members=(0, 1)), 0.0)).members == (0, 1)


@pytest.mark.parametrize("members", [(1, 0), (0, 0), (0, 3), (-1, 0), (1, 2), ()])
def test_members_that_cannot_be_are_refused(members: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="cannot be"):
        Agreement(3).arrive(0, make(members=members), 0.0)


def test_arriving_twice_is_refused() -> None:
    agreement = Agreement(3)
    agreement.arrive(0, make(), 0.0)
    with pytest.raises(ValueError, match="twice"):
        agreement.arrive(0, make(), 0.0)


def test_a_mismatch_fails_on_all_and_only_that_operation() -> None:
    agreement = Agreement(3)
    agreement.arrive(0, make("other"), 0.0)
    agreement.arrive(0, make(), 0.0)
    agreement.arrive(1, make(count=5), 0.0)
    failed = one_failure(agreement.arrive(2, make(), 0.0))
    assert failed.kind == "mismatch" and failed.ranks == (0, 1, 2) and "Mismatched shapes" in failed.text
    assert [pending.name for pending in agreement.pending(1.0)] == ["other"]
    assert one_ready(arrive_all(agreement, make(count=7))).request.segments[0].shape == (7,)


# ---- numbers ----


def test_a_number_stands_for_what_its_rank_said_before() -> None:
    agreement = Agreement(3)
    rows = [make(kind=Kind.ALLGATHER, segments=(TensorSpec(DType.INT8, (rank, 2)),)) for rank in range(3)]
    first = [d for rank in range(3) for d in agreement.arrive(rank, rows[rank], 0.0)]
    again = one_ready(arrive_all(agreement, one_ready(first).id))
    assert again.known and received_bytes(again.requests, again.members, 0) == ((0, 2, 4),)


def test_a_rank_that_changes_its_request_makes_the_others_be_compared_again() -> None:
    agreement = Agreement(3)
    number = one_ready(arrive_all(agreement, make())).id
    agreement.arrive(0, number, 0.0)
    agreement.arrive(1, number, 0.0)
    failed = one_failure(agreement.arrive(2, make(count=5), 0.0))
    assert "Mismatched shapes" in failed.text
    assert number in agreement.forgotten()
    with pytest.raises(KeyError):
        agreement.arrive(0, number, 0.0)
    assert not one_ready(arrive_all(agreement, make(count=5))).known


def test_all_may_change_together_and_keep_the_number() -> None:
    agreement = Agreement(3)
    number = one_ready(arrive_all(agreement, make())).id
    ready = one_ready(arrive_all(agreement, make(count=9)))
    assert ready.id == number and not ready.known
    assert one_ready(arrive_all(agreement, number)).request.segments[0].shape == (9,)


def test_who_sat_out_while_the_others_changed_cannot_use_its_old_number() -> None:
    agreement = Agreement(3)
    number = one_ready(arrive_all(agreement, make())).id
    agreement.join(2, False)
    assert one_ready(arrive_all(agreement, make(count=8), (0, 1))).contributors == (0, 1)
    agreement.join(0, False)
    agreement.join(1, False)
    agreement.arrive(0, number, 0.0)
    agreement.arrive(1, number, 0.0)
    with pytest.raises(KeyError):
        agreement.arrive(2, number, 0.0)
    assert one_failure(agreement.arrive(2, make(), 0.0)).kind == "mismatch"


def test_unnamed_operations_are_not_remembered() -> None:
    agreement = Agreement(3)
    for i in range(10):
        assert one_ready(arrive_all(agreement, make(f"noname.{i}", named=False))).id == 0
    assert not agreement._entries


def test_the_least_recently_used_is_forgotten_and_one_in_use_never() -> None:
    agreement = Agreement(3, cache_capacity=2)
    numbers = {name: one_ready(arrive_all(agreement, make(name))).id for name in ("a", "b")}
    agreement.arrive(0, numbers["a"], 0.0)  # in use
    arrive_all(agreement, make("c"))
    assert agreement.forgotten() == (numbers["b"],)
    assert one_ready(arrive_all(agreement, numbers["a"], (1, 2)))
    assert len(agreement._entries) == 2


def test_without_capacity_nothing_is_remembered() -> None:
    agreement = Agreement(3, cache_capacity=0)
    assert one_ready(arrive_all(agreement, make())).id == 0


def test_a_number_cannot_be_used_by_a_rank_outside_the_set() -> None:
    agreement = Agreement(3)
    number = one_ready(arrive_all(agreement, make(members=(0, 1)), (0, 1))).id
    with pytest.raises(KeyError):
        agreement.arrive(2, number, 0.0)


# ---- suspicious lines ----


def test_unnamed_operations_of_different_lines_are_warned_about_once() -> None:
    agreement = Agreement(2)
    warnings = 0
    for i in range(5):
        for rank in range(2):
            request = make(f"noname.{i}", (0, 1), named=False, line=f"a.py:{rank}")
            decisions = agreement.arrive(rank, request, 0.0)
        warnings += sum(isinstance(decision, OperationSuspicious) for decision in decisions)
        assert isinstance(decisions[-1], OperationReady)
    assert warnings == 1


def test_they_are_an_error_in_strict_mode() -> None:
    agreement = Agreement(2, strict=True)
    agreement.arrive(0, make("noname.1", (0, 1), named=False, line="a.py:1"), 0.0)
    failed = one_failure(agreement.arrive(1, make("noname.1", (0, 1), named=False, line="a.py:2"), 0.0))
    assert failed.kind == "mismatch" and "a.py:1" in failed.text and "a.py:2" in failed.text


# ---- join ----


def test_who_has_joined_is_not_waited_for_and_the_average_is_over_all() -> None:
    agreement = Agreement(3)
    agreement.arrive(0, make(how=Reduction(ReduceOp.AVERAGE)), 0.0)
    agreement.arrive(1, make(how=Reduction(ReduceOp.AVERAGE)), 0.0)
    ready = one_ready(agreement.join(2, False))
    assert ready.contributors == (0, 1) and ready.divisor == 3


def test_the_average_may_be_over_the_active() -> None:
    agreement = Agreement(3)
    agreement.join(2, True)
    assert one_ready(arrive_all(agreement, make(how=Reduction(ReduceOp.AVERAGE)), (0, 1))).divisor == 2


def test_data_brought_before_joining_counts() -> None:
    agreement = Agreement(3)
    agreement.arrive(2, make(), 0.0)
    agreement.join(2, False)
    assert one_ready(arrive_all(agreement, make(), (0, 1))).contributors == (0, 1, 2)


def test_join_ends_when_all_have_joined_and_names_the_last() -> None:
    agreement = Agreement(3)
    assert agreement.join(2, False) == [] and agreement.join(0, False) == []
    assert agreement.join(1, False) == [AllJoined(1)]
    assert arrive_all(agreement, make(), (0, 1)) == []  # everyone is needed again


@pytest.mark.parametrize("kind", [Kind.ALLGATHER, Kind.BROADCAST, Kind.ALLTOALL, Kind.REDUCESCATTER])
def test_what_needs_everyones_data_fails_once_somebody_has_joined(kind: Kind) -> None:
    agreement = Agreement(3)
    agreement.join(1, False)
    request = make(kind=kind, root=0, segments=(TensorSpec(DType.FLOAT32, (3,)),))
    failed = one_failure(arrive_all(agreement, request, (0, 2)))
    assert failed.kind == "joined" and failed.ranks == (0, 2) and "rank 1 has joined" in failed.text


def test_a_barrier_goes_on_without_the_joined() -> None:
    agreement = Agreement(3)
    agreement.join(1, False)
    assert one_ready(arrive_all(agreement, make(kind=Kind.BARRIER, segments=()), (0, 2))).contributors == (0, 2)


def test_a_join_does_not_touch_sets_it_is_not_in() -> None:
    agreement = Agreement(3)
    agreement.arrive(0, make(members=(0, 1)), 0.0)
    assert agreement.join(2, False) == []
    assert one_ready(agreement.arrive(1, make(members=(0, 1)), 0.0)).divisor == 2


@pytest.mark.parametrize("joined", [(3,), (2, 3), (1, 2, 3)])
def test_adasum_is_refused_once_a_rank_has_joined(joined: tuple[int, ...]) -> None:
    """Also where those who are left are a power of two: it would be another result."""
    agreement = Agreement(4)
    everyone = (0, 1, 2, 3)
    number = one_ready(arrive_all(agreement, make(members=everyone, how=Reduction(ReduceOp.ADASUM)), everyone)).id
    for rank in joined:
        agreement.join(rank, False)
    left = tuple(rank for rank in everyone if rank not in joined)
    failed = one_failure(arrive_all(agreement, number, left))
    assert failed.kind == "joined" and "but Adasum needs all members" in failed.text
    assert failed.ranks == left


# ---- leaving ----


def test_leaving_in_good_order_fails_what_needs_the_rank_now_and_later() -> None:
    agreement = Agreement(3)
    agreement.arrive(0, make(), 0.0)
    agreement.arrive(0, make("pair", (0, 1)), 0.0)
    failed = one_failure(agreement.leave(2))
    assert failed.kind == "shutdown" and failed.ranks == (0,) and "rank 2" in failed.text
    assert one_failure(agreement.arrive(1, make(), 0.0)).ranks == (1,)
    assert one_ready(agreement.arrive(1, make("pair", (0, 1)), 0.0))


def test_a_death_fails_everything_now_and_later() -> None:
    agreement = Agreement(3)
    agreement.arrive(0, make("pair", (0, 1)), 0.0)
    failed = one_failure(agreement.leave(2, "signal 9"))
    assert failed.kind == "lost" and "rank 2 died (signal 9)" in failed.text
    assert one_failure(agreement.arrive(1, make("new", (0, 1)), 0.0)).kind == "lost"


def test_a_join_that_can_never_end_fails() -> None:
    agreement = Agreement(3)
    agreement.join(0, False)
    failed = one_failure(agreement.leave(1))
    assert failed.key[0] == JOIN and failed.ranks == (0,)
    assert one_failure(agreement.join(2, False)).ranks == (2,)


# ---- looking and judging ----


def test_pending_says_who_is_missing_and_for_how_long() -> None:
    agreement = Agreement(3)
    agreement.arrive(1, make(), 10.0)
    (pending,) = agreement.pending(12.5)
    assert (pending.name, pending.age_s, pending.missing) == ("x", 2.5, (0, 2))
    assert pending.requests == {1: make()}


def test_a_verdict_counts_only_while_nothing_has_moved() -> None:
    agreement = Agreement(3)
    agreement.arrive(1, make(), 0.0)
    before = agreement.progress
    assert agreement.fail(("x", (0, 1, 2)), (0,), "stall", "late") == []
    assert agreement.fail(("y", (0, 1, 2)), (0, 2), "stall", "late") == []
    assert agreement.progress == before
    assert one_failure(agreement.fail(("x", (0, 1, 2)), (0, 2), "stall", "late")).ranks == (1,)
    assert agreement.progress != before and not agreement.pending(0.0)


# ---- at random ----


@given(st.integers(1, 5), st.integers(0, 8), st.integers(0, 4), st.randoms(use_true_random=False))
def test_in_any_order_each_round_ends_in_one_decision_with_everyones_own_request(
    size: int, names: int, capacity: int, order: random.Random
) -> None:
    """Ranks repeat operations, by number where they may, change them at times; nothing is mixed up or left over."""
    agreement = Agreement(size, cache_capacity=capacity)
    numbers: list[dict[str, tuple[int, Request]]] = [{} for _ in range(size)]
    everyone = tuple(range(size))
    for _ in range(4):
        wishes = {
            (rank, f"n{i}"): make(f"n{i}", everyone, count=order.choice([4, 4, 4, 5]))
            for i in range(names)
            for rank in everyone
        }
        arrivals = list(wishes)
        order.shuffle(arrivals)
        decided: dict[str, Decision] = {}
        for rank, name in arrivals:
            number, said = numbers[rank].get(name, (0, None))
            request = wishes[rank, name]
            try:
                decisions = agreement.arrive(rank, number if said == request else request, 0.0)
            except KeyError:
                decisions = agreement.arrive(rank, request, 0.0)
            for decision in decisions:
                assert isinstance(decision, OperationReady | OperationFailed)
                assert decided.setdefault(decision.key[0], decision) is decision
        for name, decision in decided.items():
            said_by_rank = {rank: wishes[rank, name] for rank in everyone}
            if isinstance(decision, OperationReady):
                assert decision.requests == said_by_rank
                assert len({r.segments for r in said_by_rank.values()}) == 1
                for rank in everyone:
                    numbers[rank][name] = (decision.id, wishes[rank, name]) if decision.id else (0, msgspec.UNSET)  # type: ignore[assignment]
            else:
                assert len({r.segments for r in said_by_rank.values()}) > 1
        assert len(decided) == names
        assert not agreement.pending(0.0)
        assert len(agreement._entries) <= capacity


def test_a_segment_knows_its_size() -> None:
    assert TensorSpec(DType.FLOAT64, (3, 5)).nbytes == 120 and TensorSpec(DType.BOOL, (0, 5)).nbytes == 0


def test_who_is_no_member_cannot_submit_what_members_have() -> None:
    agreement = Agreement(3)
    request = make(members=(0, 1))
    agreement.arrive(0, request, 0.0)
    with pytest.raises(ValueError, match=r"rank 2 submitted .* which it is not in"):
        agreement.arrive(2, request, 0.0)
