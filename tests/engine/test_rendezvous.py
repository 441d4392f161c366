"""Rendezvous: who gathers, who is told what, and when."""

from __future__ import annotations

from hora.config.settings import Settings
from hora.engine.gathering import HelloRefused, MembersReady
from hora.engine.rendezvous import Rendezvous
from hora.wire.messages import Hello


def hello(rank: int, generation: int = 0, members: tuple[int, ...] = (0, 1, 2), size: int = 3) -> Hello:
    return Hello(generation, rank, size, 100 + rank, "host", members, Settings(start_timeout_s=10))


def turned(outcomes: list[MembersReady | HelloRefused], kind: str) -> dict[int, str]:
    assert all(isinstance(outcome, HelloRefused) and outcome.kind == kind for outcome in outcomes), outcomes
    return {outcome.hello.rank: outcome.text for outcome in outcomes if isinstance(outcome, HelloRefused)}


def test_all_members_gather_in_any_order() -> None:
    rendezvous = Rendezvous(3)
    assert rendezvous.hello(hello(2), 0.0) == [] and rendezvous.hello(hello(0), 0.0) == []
    assert rendezvous.waiting
    assert rendezvous.hello(hello(1), 0.0) == [MembersReady((hello(0), hello(1), hello(2)))]
    assert not rendezvous.waiting


def test_parts_of_the_world_gather_by_themselves() -> None:
    rendezvous = Rendezvous(4)
    assert rendezvous.hello(hello(0, members=(0, 2), size=4), 0.0) == []
    assert rendezvous.hello(hello(1, members=(1, 3), size=4), 0.0) == []
    assert len(rendezvous.hello(hello(2, members=(0, 2), size=4), 0.0)) == 1
    assert len(rendezvous.hello(hello(3, members=(1, 3), size=4), 0.0)) == 1


def test_the_missing_are_named_when_time_is_up() -> None:
    rendezvous = Rendezvous(3)
    rendezvous.hello(hello(1), 5.0)
    assert rendezvous.expire(5.0 + 12.9) == []
    texts = turned(rendezvous.expire(5.0 + 13.1), "stall")
    assert "ranks 0, 2 did not call init() within 13 s; rank 1 did" in texts[1]
    assert not rendezvous.waiting


def test_a_death_before_init_ends_the_waiting_at_once() -> None:
    rendezvous = Rendezvous(3)
    rendezvous.hello(hello(0), 0.0)
    assert "rank 1 ended (exit code 1)" in turned(rendezvous.ended(1, "exit code 1"), "lost")[0]
    assert "rank 1 ended" in turned(rendezvous.hello(hello(2), 0.0), "lost")[2]
    rendezvous.started(1)
    assert rendezvous.hello(hello(2), 0.0) == []


def test_a_generation_that_is_over_is_refused() -> None:
    rendezvous = Rendezvous(3)
    for rank in range(3):
        rendezvous.hello(hello(rank, generation=4), 0.0)
    assert "generation 4 of these ranks has already begun" in turned(rendezvous.hello(hello(1, 4), 0.0), "stale")[1]
    assert "generation 3" in turned(rendezvous.hello(hello(1, 3), 0.0), "stale")[1]
    assert rendezvous.hello(hello(1, 5), 0.0) == []


def test_a_straggler_of_an_old_generation_is_sent_away_by_the_new() -> None:
    rendezvous = Rendezvous(3)
    rendezvous.hello(hello(1, generation=0), 0.0)
    rendezvous.hello(hello(0, generation=1), 0.0)
    rendezvous.hello(hello(2, generation=1), 0.0)
    gathered, away = rendezvous.hello(hello(1, generation=1), 0.0)
    assert isinstance(gathered, MembersReady)
    assert isinstance(away, HelloRefused) and away.kind == "stale"


def test_members_that_disagree_are_told_so_at_once() -> None:
    rendezvous = Rendezvous(3)
    rendezvous.hello(hello(0, members=(0, 1)), 0.0)
    texts = turned(rendezvous.hello(hello(1), 0.0), "usage")
    assert texts.keys() == {0, 1} and "rank 0 called init() for ranks 0, 1" in texts[1]
    assert "rank 1 called init() for ranks 0-2" in texts[0]


def test_nonsense_is_refused() -> None:
    rendezvous = Rendezvous(3)
    for wrong in (hello(0, size=2), hello(0, members=(1, 2)), hello(0, members=(0, 0)), hello(0, members=(0, 7))):
        assert turned(rendezvous.hello(wrong, 0.0), "usage")
