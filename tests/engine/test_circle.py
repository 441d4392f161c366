"""The coordinator by itself: who is told what."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from hora.config.settings import Settings
from hora.engine import circle as circle_module
from hora.engine.circle import Circle, look_every_s
from hora.engine.request import Request, Segment
from hora.engine.snapshot import unpack
from hora.transport.base import DType, Kind
from hora.wire import messages as m
from hora.wire.frame import WireError

EVERYONE = (0, 1, 2)


@pytest.fixture
def circle() -> Circle:
    return Circle(5, [m.Peer(rank, rank, 100 + rank, "host") for rank in EVERYONE], Settings(cache_capacity=2))


def taken(circle: Circle, kind: type[Any]) -> list[tuple[tuple[int, ...], Any]]:
    circle.flush()
    outbox, circle.outbox = circle.outbox, []
    return [(ranks, message) for ranks, message in outbox if isinstance(message, kind)]


def submit(circle: Circle, rank: int, *items: Request | int) -> None:
    wire = tuple(item if isinstance(item, int) else item.encode() for item in items)
    circle.receive(rank, m.Submit(5, wire), 0.0)


def allreduce(name: str, members: tuple[int, ...] = EVERYONE, count: int = 3) -> Request:
    return Request(Kind.ALLREDUCE, name, (Segment(DType.FLOAT32, (count,)),), members)


def test_one_plan_serves_all_and_the_next_goes_by_number(circle: Circle) -> None:
    for rank in EVERYONE:
        submit(circle, rank, allreduce("a"), allreduce("b"))
    ((ranks, plan),) = taken(circle, m.Plan)
    assert ranks == EVERYONE and plan.generation == 5
    (batch,) = plan.batches  # fused
    assert [op.name for op in batch.ops] == ["a", "b"] and batch.contributors == ()
    numbers = tuple(op.id for op in batch.ops)
    for rank in EVERYONE:
        submit(circle, rank, *numbers)
    ((_, plan),) = taken(circle, m.Plan)
    assert plan.batches[0].ops == numbers


def test_each_set_hears_only_of_its_own(circle: Circle) -> None:
    for rank in (0, 2):
        submit(circle, rank, allreduce("pair", (0, 2)))
    ((ranks, _),) = taken(circle, m.Plan)
    assert ranks == (0, 2)


def test_alltoall_tells_each_rank_what_it_receives(circle: Circle) -> None:
    for rank in EVERYONE:
        segment = Segment(DType.INT16, (3, 5))
        submit(circle, rank, Request(Kind.ALLTOALL, "x", (segment,), EVERYONE, splits=(rank, 0, 3 - rank)))
    plans = taken(circle, m.Plan)
    assert {ranks: plan.batches[0].received for ranks, plan in plans} == {
        (0,): ((0, 10, 20),),
        (1,): ((0, 0, 0),),
        (2,): ((30, 20, 10),),
    }


def test_forgotten_numbers_are_told_to_all_and_asked_for_again(circle: Circle) -> None:
    for name in ("a", "b", "c"):
        for rank in EVERYONE:
            submit(circle, rank, allreduce(name, count=1000))
        plans = taken(circle, m.Plan)
    ((ranks, plan),) = plans
    assert ranks == EVERYONE and len(plan.forget) == 1
    submit(circle, 1, *plan.forget)
    assert taken(circle, m.Again) == [((1,), m.Again(5, plan.forget))]


def test_a_snapshot_waits_for_everyone_but_not_for_ever(circle: Circle) -> None:
    submit(circle, 1, allreduce("a"))
    circle.receive(0, m.SnapshotAsk(5, 77), 10.0)
    ((ranks, ask),) = taken(circle, m.StateAsk)
    assert sorted(ranks) == [0, 1, 2] and circle.timed
    circle.receive(0, m.StateReply(5, ask.id, False, ()), 10.1)
    circle.receive(1, m.StateReply(5, ask.id, True, (("a", EVERYONE),)), 10.1)
    assert taken(circle, m.SnapshotReply) == []
    circle.tick(10.5)
    assert taken(circle, m.SnapshotReply) == []
    circle.tick(11.5)
    (((asker,), reply),) = taken(circle, m.SnapshotReply)
    assert (asker, reply.id) == (0, 77) and not circle.timed
    snapshot = unpack(reply.snapshot)
    assert [(rank.blocked, rank.silent) for rank in snapshot.ranks] == [(False, False), (True, False), (False, True)]
    assert [(pending.name, pending.missing) for pending in snapshot.pending] == [("a", (0, 2))]


def answer(circle: Circle, look_id: int, ranks: Iterable[int], now: float) -> None:
    for rank in ranks:
        circle.receive(rank, m.StateReply(5, look_id, False, ()), now)


def test_one_look_serves_all_who_ask_meanwhile_and_the_next_is_not_at_once(circle: Circle) -> None:
    circle.receive(0, m.SnapshotAsk(5, 70), 10.0)
    circle.receive(1, m.SnapshotAsk(5, 71), 10.01)
    ((_, ask),) = taken(circle, m.StateAsk)
    answer(circle, ask.id, (0, 1), 10.02)
    circle.receive(2, m.SnapshotAsk(5, 72), 10.02)
    answer(circle, ask.id, (2,), 10.03)
    replies = taken(circle, m.SnapshotReply)
    assert [(ranks, reply.id) for ranks, reply in replies] == [((0,), 70), ((1,), 71), ((2,), 72)]
    circle.receive(0, m.SnapshotAsk(5, 73), 10.04)
    assert taken(circle, m.StateAsk) == [] and circle.timed
    circle.tick(10.05)
    assert taken(circle, m.StateAsk) == []
    circle.tick(10.0 + look_every_s(3))
    ((_, ask),) = taken(circle, m.StateAsk)
    answer(circle, ask.id, EVERYONE, 10.2)
    assert [reply.id for _, reply in taken(circle, m.SnapshotReply)] == [73] and not circle.timed


@pytest.mark.parametrize("how", ["leaves", "dies"])
def test_a_question_is_answered_though_another_rank_goes(circle: Circle, how: str) -> None:
    circle.receive(0, m.SnapshotAsk(5, 77), 10.0)
    circle.receive(2, m.SnapshotAsk(5, 78), 10.0)
    ((_, ask),) = taken(circle, m.StateAsk)
    answer(circle, ask.id, (0, 1), 10.1)
    if how == "leaves":
        circle.receive(2, m.Bye(5), 10.1)
    else:
        circle.died(2, "signal 9")
    circle.tick(10.15)  # nobody is left to be waited for
    (((asker,), reply),) = taken(circle, m.SnapshotReply)
    assert (asker, reply.id) == (0, 77)
    assert [rank.silent for rank in unpack(reply.snapshot).ranks] == [False, False, False]


def test_256_ranks_and_one_is_late_with_300_operations() -> None:
    """A snapshot must fit in a frame, and what is asked must not grow with the square of the ranks."""
    everyone = tuple(range(256))
    circle = Circle(5, [m.Peer(rank, rank, 100 + rank, "host") for rank in everyone], Settings())
    names = [f"allreduce.gradients.0.layer4.{i}.conv3.weight" for i in range(300)]
    segments = (Segment(DType.FLOAT32, (2048, 512, 1, 1)),)
    step = m.Submit(
        5, tuple(Request(Kind.ALLREDUCE, name, segments, everyone, line="a.py:7").encode() for name in names)
    )
    for rank in everyone[:-1]:
        circle.receive(rank, step, 0.0)
    for rank in everyone[:-1]:
        circle.receive(rank, m.SnapshotAsk(5, 1000 + rank), 10.0)
    ((asked, ask),) = taken(circle, m.StateAsk)
    assert sorted(asked) == list(everyone)
    for rank in everyone[:-1]:
        circle.receive(rank, m.StateReply(5, ask.id, True, ((names[0], everyone),)), 10.1)
    circle.tick(11.5)
    replies = taken(circle, m.SnapshotReply)
    assert [(ranks, reply.id) for ranks, reply in replies] == [((rank,), 1000 + rank) for rank in everyone[:-1]]
    assert len(m.encode(replies[0][1])) < 100_000
    snapshot = unpack(replies[0][1].snapshot)
    assert [(p.name, p.members, p.missing) for p in snapshot.pending] == [(name, everyone, (255,)) for name in names]
    assert all(list(p.requests) == list(everyone[:-1]) for p in snapshot.pending)
    assert snapshot.pending[7].requests[3] == Request.decode(step.items[7])  # type: ignore[arg-type]
    assert [rank.silent for rank in snapshot.ranks] == [False] * 255 + [True]
    circle.receive(255, step, 12.0)
    ((ranks, plan),) = taken(circle, m.Plan)
    assert ranks == everyone and sum(len(batch.ops) for batch in plan.batches) == 300


def test_the_first_death_is_told_once_with_the_last_words(circle: Circle) -> None:
    circle.receive(2, m.LastWords(5, "ouch"), 0.0)
    circle.died(2, "signal 9")
    circle.died(1, "signal 15")
    assert taken(circle, m.Died) == [((0, 1), m.Died(5, 2, "signal 9", "ouch"))]
    submit(circle, 0, allreduce("a", (0,)))
    assert taken(circle, m.Plan) == []
    circle.receive(0, m.Bye(5), 0.0)
    assert taken(circle, m.Farewell) == [((0,), m.Farewell(5))]
    assert not circle.present


def test_a_worker_that_cannot_move_data_ends_the_generation_but_may_still_leave(circle: Circle) -> None:
    circle.receive(1, m.Broken(5, "no route"), 0.0)
    ((ranks, died),) = taken(circle, m.Died)
    assert ranks == (0, 2) and (died.rank, died.status) == (1, "no route")
    circle.receive(1, m.Bye(5), 0.0)
    assert taken(circle, m.Farewell) == [((1,), m.Farewell(5))]


def test_a_rank_that_was_given_up_is_answered_when_it_runs_again(circle: Circle) -> None:
    circle.receive(0, m.GivenUp(5, 2, "it has not answered for 600 s"), 0.0)
    circle.flush()
    (died, told), circle.outbox = circle.outbox, []
    assert died == ((0, 1), m.Died(5, 2, "it has not answered for 600 s"))
    assert told[0] == (2,) and "it has not answered for 600 s" in told[1].text  # type: ignore[attr-defined]
    late = [m.Submit(5, (allreduce("a").encode(),)), m.Submit(5, (7,)), m.Join(5, False), m.StoreGet(5, 1, "k"),
            m.SnapshotAsk(5, 1), m.StackAsk(5, 1, 0)]  # fmt: skip
    for message in late:
        circle.receive(2, message, 1.0)
        assert [(ranks, reply.kind) for ranks, reply in taken(circle, m.Refused)] == [((2,), "stale")], message
    for message in (m.StateReply(5, 1, True, ()), m.StackReply(5, 1, ""), m.StoreSet(5, "k", b""), m.LastWords(5, "")):
        circle.receive(2, message, 1.0)
    circle.receive(0, m.GivenUp(5, 2, "again"), 1.0)
    assert circle.outbox == []
    circle.receive(2, m.Bye(5), 2.0)
    assert circle.outbox == [((2,), m.Farewell(5))]


def test_questions_to_those_who_are_gone_are_answered(circle: Circle) -> None:
    circle.receive(2, m.Bye(5), 0.0)
    circle.receive(0, m.StackAsk(5, 9, 2), 0.0)
    ((_, reply),) = taken(circle, m.StackReply)
    assert reply.id == 9 and "gone" in reply.text


def test_the_store_is_bounded(circle: Circle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circle_module, "_STORE_BYTES", 100)
    circle.receive(0, m.StoreSet(5, "a", bytes(60)), 0.0)
    with pytest.raises(WireError, match="120 bytes, the limit is 100"):
        circle.receive(0, m.StoreSet(5, "b", bytes(60)), 0.0)


@pytest.mark.parametrize("item", [b"junk", b"", b"\xc1"])
def test_what_is_no_request_is_a_breach(circle: Circle, item: bytes) -> None:
    with pytest.raises(WireError, match="no request"):
        circle.receive(0, m.Submit(5, (item,)), 0.0)
