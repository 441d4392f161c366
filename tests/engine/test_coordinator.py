"""The coordinator by itself: who is told what."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from hora.config.settings import Settings
from hora.engine import coordinator as circle_module
from hora.engine.coordinator import Coordinator, look_every_s
from hora.engine.request import Request, TensorSpec
from hora.engine.snapshot import unpack
from hora.types import DType, Kind
from hora.wire import messages as m
from hora.wire.frame import WireError

EVERYONE = (0, 1, 2)


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator(5, [m.Peer(rank, rank, 100 + rank, "host") for rank in EVERYONE], Settings(cache_capacity=2))


def taken(coordinator: Coordinator, kind: type[Any]) -> list[tuple[tuple[int, ...], Any]]:
    coordinator.flush()
    outbox, coordinator.outbox = coordinator.outbox, []
    return [(ranks, message) for ranks, message in outbox if isinstance(message, kind)]


def submit(coordinator: Coordinator, rank: int, *items: Request | int) -> None:
    wire = tuple(item if isinstance(item, int) else item.encode() for item in items)
    coordinator.receive(rank, m.Submit(5, wire), 0.0)


def allreduce(name: str, members: tuple[int, ...] = EVERYONE, count: int = 3) -> Request:
    return Request(Kind.ALLREDUCE, name, (TensorSpec(DType.FLOAT32, (count,)),), members)


def test_one_plan_serves_all_and_the_next_goes_by_number(coordinator: Coordinator) -> None:
    for rank in EVERYONE:
        submit(coordinator, rank, allreduce("a"), allreduce("b"))
    ((ranks, plan),) = taken(coordinator, m.HubDecisions)
    assert ranks == EVERYONE and plan.generation == 5
    (batch,) = plan.batches  # fused
    assert [op.name for op in batch.ops] == ["a", "b"] and batch.contributors == ()
    numbers = tuple(op.id for op in batch.ops)
    for rank in EVERYONE:
        submit(coordinator, rank, *numbers)
    ((_, plan),) = taken(coordinator, m.HubDecisions)
    assert plan.batches[0].ops == numbers


def test_each_set_hears_only_of_its_own(coordinator: Coordinator) -> None:
    for rank in (0, 2):
        submit(coordinator, rank, allreduce("pair", (0, 2)))
    ((ranks, _),) = taken(coordinator, m.HubDecisions)
    assert ranks == (0, 2)


def test_alltoall_tells_each_rank_what_it_receives(coordinator: Coordinator) -> None:
    for rank in EVERYONE:
        segment = TensorSpec(DType.INT16, (3, 5))
        submit(coordinator, rank, Request(Kind.ALLTOALL, "x", (segment,), EVERYONE, splits=(rank, 0, 3 - rank)))
    plans = taken(coordinator, m.HubDecisions)
    assert {ranks: plan.batches[0].received for ranks, plan in plans} == {
        (0,): ((0, 10, 20),),
        (1,): ((0, 0, 0),),
        (2,): ((30, 20, 10),),
    }


def test_forgotten_numbers_are_told_to_all_and_asked_for_again(coordinator: Coordinator) -> None:
    for name in ("a", "b", "c"):
        for rank in EVERYONE:
            submit(coordinator, rank, allreduce(name, count=1000))
        plans = taken(coordinator, m.HubDecisions)
    ((ranks, plan),) = plans
    assert ranks == EVERYONE and len(plan.forget) == 1
    submit(coordinator, 1, *plan.forget)
    assert taken(coordinator, m.Again) == [((1,), m.Again(5, plan.forget))]


def test_a_snapshot_waits_for_everyone_but_not_for_ever(coordinator: Coordinator) -> None:
    submit(coordinator, 1, allreduce("a"))
    coordinator.receive(0, m.SnapshotAsk(5, 77), 10.0)
    ((ranks, ask),) = taken(coordinator, m.StateAsk)
    assert sorted(ranks) == [0, 1, 2] and coordinator.timed
    coordinator.receive(0, m.StateReply(5, ask.id, False, ()), 10.1)
    coordinator.receive(1, m.StateReply(5, ask.id, True, (("a", EVERYONE),)), 10.1)
    assert taken(coordinator, m.SnapshotReply) == []
    coordinator.tick(10.5)
    assert taken(coordinator, m.SnapshotReply) == []
    coordinator.tick(11.5)
    (((asker,), reply),) = taken(coordinator, m.SnapshotReply)
    assert (asker, reply.id) == (0, 77) and not coordinator.timed
    snapshot = unpack(reply.snapshot)
    assert [(rank.blocked, rank.silent) for rank in snapshot.ranks] == [(False, False), (True, False), (False, True)]
    assert [(pending.name, pending.missing) for pending in snapshot.pending] == [("a", (0, 2))]


def answer(coordinator: Coordinator, look_id: int, ranks: Iterable[int], now: float) -> None:
    for rank in ranks:
        coordinator.receive(rank, m.StateReply(5, look_id, False, ()), now)


def test_one_look_serves_all_who_ask_meanwhile_and_the_next_is_not_at_once(coordinator: Coordinator) -> None:
    coordinator.receive(0, m.SnapshotAsk(5, 70), 10.0)
    coordinator.receive(1, m.SnapshotAsk(5, 71), 10.01)
    ((_, ask),) = taken(coordinator, m.StateAsk)
    answer(coordinator, ask.id, (0, 1), 10.02)
    coordinator.receive(2, m.SnapshotAsk(5, 72), 10.02)
    answer(coordinator, ask.id, (2,), 10.03)
    replies = taken(coordinator, m.SnapshotReply)
    assert [(ranks, reply.id) for ranks, reply in replies] == [((0,), 70), ((1,), 71), ((2,), 72)]
    coordinator.receive(0, m.SnapshotAsk(5, 73), 10.04)
    assert taken(coordinator, m.StateAsk) == [] and coordinator.timed
    coordinator.tick(10.05)
    assert taken(coordinator, m.StateAsk) == []
    coordinator.tick(10.0 + look_every_s(3))
    ((_, ask),) = taken(coordinator, m.StateAsk)
    answer(coordinator, ask.id, EVERYONE, 10.2)
    assert [reply.id for _, reply in taken(coordinator, m.SnapshotReply)] == [73] and not coordinator.timed


@pytest.mark.parametrize("how", ["leaves", "dies"])
def test_a_question_is_answered_though_another_rank_goes(coordinator: Coordinator, how: str) -> None:
    coordinator.receive(0, m.SnapshotAsk(5, 77), 10.0)
    coordinator.receive(2, m.SnapshotAsk(5, 78), 10.0)
    ((_, ask),) = taken(coordinator, m.StateAsk)
    answer(coordinator, ask.id, (0, 1), 10.1)
    if how == "leaves":
        coordinator.receive(2, m.Bye(5), 10.1)
    else:
        coordinator.died(2, "signal 9")
    coordinator.tick(10.15)  # nobody is left to be waited for
    (((asker,), reply),) = taken(coordinator, m.SnapshotReply)
    assert (asker, reply.id) == (0, 77)
    assert [rank.silent for rank in unpack(reply.snapshot).ranks] == [False, False, False]


def test_256_ranks_and_one_is_late_with_300_operations() -> None:
    """A snapshot must fit in a frame, and what is asked must not grow with the square of the ranks."""
    everyone = tuple(range(256))
    coordinator = Coordinator(5, [m.Peer(rank, rank, 100 + rank, "host") for rank in everyone], Settings())
    names = [f"allreduce.gradients.0.layer4.{i}.conv3.weight" for i in range(300)]
    segments = (TensorSpec(DType.FLOAT32, (2048, 512, 1, 1)),)
    step = m.Submit(
        5, tuple(Request(Kind.ALLREDUCE, name, segments, everyone, line="a.py:7").encode() for name in names)
    )
    for rank in everyone[:-1]:
        coordinator.receive(rank, step, 0.0)
    for rank in everyone[:-1]:
        coordinator.receive(rank, m.SnapshotAsk(5, 1000 + rank), 10.0)
    ((asked, ask),) = taken(coordinator, m.StateAsk)
    assert sorted(asked) == list(everyone)
    for rank in everyone[:-1]:
        coordinator.receive(rank, m.StateReply(5, ask.id, True, ((names[0], everyone),)), 10.1)
    coordinator.tick(11.5)
    replies = taken(coordinator, m.SnapshotReply)
    assert [(ranks, reply.id) for ranks, reply in replies] == [((rank,), 1000 + rank) for rank in everyone[:-1]]
    assert len(m.encode(replies[0][1])) < 100_000
    snapshot = unpack(replies[0][1].snapshot)
    assert [(p.name, p.members, p.missing) for p in snapshot.pending] == [(name, everyone, (255,)) for name in names]
    assert all(list(p.requests) == list(everyone[:-1]) for p in snapshot.pending)
    assert snapshot.pending[7].requests[3] == Request.decode(step.items[7])  # type: ignore[arg-type]
    assert [rank.silent for rank in snapshot.ranks] == [False] * 255 + [True]
    coordinator.receive(255, step, 12.0)
    ((ranks, plan),) = taken(coordinator, m.HubDecisions)
    assert ranks == everyone and sum(len(batch.ops) for batch in plan.batches) == 300


def test_the_first_death_is_told_once_with_the_last_words(coordinator: Coordinator) -> None:
    coordinator.receive(2, m.LastWords(5, "ouch"), 0.0)
    coordinator.died(2, "signal 9")
    coordinator.died(1, "signal 15")
    assert taken(coordinator, m.Died) == [((0, 1), m.Died(5, 2, "signal 9", "ouch"))]
    submit(coordinator, 0, allreduce("a", (0,)))
    assert taken(coordinator, m.HubDecisions) == []
    coordinator.receive(0, m.Bye(5), 0.0)
    assert taken(coordinator, m.Farewell) == [((0,), m.Farewell(5))]
    assert not coordinator.present


def test_a_worker_that_cannot_move_data_ends_the_generation_but_may_still_leave(coordinator: Coordinator) -> None:
    coordinator.receive(1, m.Broken(5, "no route"), 0.0)
    ((ranks, died),) = taken(coordinator, m.Died)
    assert ranks == (0, 2) and (died.rank, died.status) == (1, "no route")
    coordinator.receive(1, m.Bye(5), 0.0)
    assert taken(coordinator, m.Farewell) == [((1,), m.Farewell(5))]


def test_a_rank_that_was_given_up_is_answered_when_it_runs_again(coordinator: Coordinator) -> None:
    coordinator.receive(0, m.GivenUp(5, 2, "it has not answered for 600 s"), 0.0)
    coordinator.flush()
    (died, told), coordinator.outbox = coordinator.outbox, []
    assert died == ((0, 1), m.Died(5, 2, "it has not answered for 600 s"))
    assert told[0] == (2,) and "it has not answered for 600 s" in told[1].text  # type: ignore[attr-defined]
    late = [m.Submit(5, (allreduce("a").encode(),)), m.Submit(5, (7,)), m.Join(5, False), m.StoreGet(5, 1, "k"),
            m.SnapshotAsk(5, 1), m.StackAsk(5, 1, 0)]  # fmt: skip
    for message in late:
        coordinator.receive(2, message, 1.0)
        assert [(ranks, reply.kind) for ranks, reply in taken(coordinator, m.Refused)] == [((2,), "stale")], message
    for message in (m.StateReply(5, 1, True, ()), m.StackReply(5, 1, ""), m.StoreSet(5, "k", b""), m.LastWords(5, "")):
        coordinator.receive(2, message, 1.0)
    coordinator.receive(0, m.GivenUp(5, 2, "again"), 1.0)
    assert coordinator.outbox == []
    coordinator.receive(2, m.Bye(5), 2.0)
    assert coordinator.outbox == [((2,), m.Farewell(5))]


def test_questions_to_those_who_are_gone_are_answered(coordinator: Coordinator) -> None:
    coordinator.receive(2, m.Bye(5), 0.0)
    coordinator.receive(0, m.StackAsk(5, 9, 2), 0.0)
    ((_, reply),) = taken(coordinator, m.StackReply)
    assert reply.id == 9 and "gone" in reply.text


def test_the_store_is_bounded(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circle_module, "_STORE_BYTES", 100)
    coordinator.receive(0, m.StoreSet(5, "a", bytes(60)), 0.0)
    with pytest.raises(WireError, match="120 bytes, the limit is 100"):
        coordinator.receive(0, m.StoreSet(5, "b", bytes(60)), 0.0)


@pytest.mark.parametrize("item", [b"junk", b"", b"\xc1"])
def test_what_is_no_request_is_a_breach(coordinator: Coordinator, item: bytes) -> None:
    with pytest.raises(WireError, match="no request"):
        coordinator.receive(0, m.Submit(5, (item,)), 0.0)
