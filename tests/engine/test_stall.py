"""Deadlocks are found, and nothing else is taken for one."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from hora.config.settings import Settings
from hora.engine.backend import Pending, RankState, Snapshot
from hora.engine.request import Request
from hora.engine.stall import (
    SilentRank,
    StallFailure,
    StallGiveUp,
    StallWarning,
    StallWatch,
    find_deadlock,
    silence_text,
    warning_text,
)
from hora.types import Kind


def pending(name: str, members: tuple[int, ...], arrived: tuple[int, ...], age_s: float = 5.0) -> Pending:
    requests = {r: Request(Kind.ALLREDUCE, name, (), members, line=f"train.py:{r + 1}") for r in arrived}
    return Pending(name, members, requests, age_s, tuple(r for r in members if r not in arrived))


def names(found: Iterable[Pending]) -> set[str]:
    return {p.name for p in found}


def world(waits: dict[int, list[Pending] | str | None], operations: list[Pending]) -> Snapshot:
    """Ranks wait for operations, for "join", or (None) are busy elsewhere."""
    ranks = []
    for rank, waited in waits.items():
        keys = (
            ()
            if waited is None
            else (("join", ()),)
            if waited == "join"
            else tuple((p.name, p.members) for p in waited)
        )  # type: ignore[union-attr]
        ranks.append(RankState(rank, 1000 + rank, waited is not None, keys))
    return Snapshot(0, tuple(ranks), tuple(operations))


def test_two_ranks_that_wait_for_each_other() -> None:
    x, y = pending("allreduce.x", (0, 1), (0,)), pending("allgather.x", (0, 1), (1,))
    assert names(find_deadlock(world({0: [x], 1: [y]}, [x, y]))) == {x.name, y.name}


def test_a_rank_that_is_busy_elsewhere_may_still_come() -> None:
    x, y = pending("x", (0, 1, 2), (0,)), pending("y", (1, 2), (1,))
    assert find_deadlock(world({0: [x], 1: [y], 2: None}, [x, y])) == ()


def test_a_circle_is_found_while_others_are_busy() -> None:
    x, y = pending("x", (0, 1), (0,)), pending("y", (0, 1), (1,))
    z = pending("z", (2, 3), (2,))
    assert names(find_deadlock(world({0: [x], 1: [y], 2: [z], 3: None}, [x, y, z]))) == {x.name, y.name}


def test_who_waits_for_a_circle_is_stuck_too() -> None:
    x, y, z = pending("x", (0, 1), (0,)), pending("y", (0, 1), (1,)), pending("z", (1, 2), (2,))
    assert names(find_deadlock(world({0: [x], 1: [y], 2: [z]}, [x, y, z]))) == {x.name, y.name, z.name}


def test_a_second_thread_with_hope_saves_the_rank() -> None:
    x, y, hope = pending("x", (0, 1), (0,)), pending("y", (0, 1), (1,)), pending("hope", (0, 2), (0,))
    assert find_deadlock(world({0: [x, hope], 1: [y], 2: None}, [x, y, hope])) == ()


def test_joined_ranks_are_not_missing_and_join_itself_can_be_stuck() -> None:
    x = pending("x", (0, 1, 2), (1, 2))
    assert find_deadlock(world({0: "join", 1: [x], 2: [x]}, [x])) == ()  # complete in fact: nobody is missing
    y = pending("y", (1, 2), (1,))
    z = pending("z", (1, 2), (2,))
    assert names(find_deadlock(world({0: "join", 1: [y], 2: [z]}, [y, z]))) == {y.name, z.name}


@given(st.data())
def test_against_a_simulation_of_everything_that_could_still_happen(data: st.DataObject) -> None:
    """Ranks that are busy may submit anything; ranks that wait go on when their operation is complete. What is then
    still waited for is a deadlock, and only that."""
    size = data.draw(st.integers(2, 5))
    operations = []
    for i in range(data.draw(st.integers(1, 5))):
        members = tuple(sorted(data.draw(st.sets(st.integers(0, size - 1), min_size=2, max_size=size))))
        arrived = tuple(sorted(data.draw(st.sets(st.sampled_from(members), min_size=1, max_size=len(members) - 1))))
        operations.append(pending(f"op{i}", members, arrived))
    waits: dict[int, list[Pending] | str | None] = {}
    for rank in range(size):
        mine = [p for p in operations if rank in p.requests]
        waits[rank] = [data.draw(st.sampled_from(mine))] if mine and data.draw(st.booleans()) else None
    free = {rank for rank, waited in waits.items() if waited is None}
    while True:
        freed = {
            rank for rank, waited in waits.items()
            if rank not in free and all(m in free for m in waited[0].missing)  # type: ignore[index,union-attr]
        }  # fmt: skip
        if not freed:
            break
        free |= freed
    stuck = [waits[rank][0] for rank in waits if rank not in free]  # type: ignore[index]
    assert names(find_deadlock(world(waits, operations))) == names(stuck)  # type: ignore[arg-type]


def test_a_deadlock_is_judged_on_the_second_look_and_not_while_young() -> None:
    watch = StallWatch(0, Settings())
    for age_s in (0.1, 0.9):
        x, y = pending("x", (0, 1), (0,), age_s), pending("y", (0, 1), (1,), age_s)
        assert watch.look(world({0: [x], 1: [y]}, [x, y])) == []
    x, y = pending("x", (0, 1), (0,), 1.2), pending("y", (0, 1), (1,), 1.2)
    assert watch.look(world({0: [x], 1: [y]}, [x, y])) == []
    verdicts = watch.look(world({0: [x], 1: [y]}, [x, y]))
    assert {v.kind for v in verdicts if isinstance(v, StallFailure)} == {"deadlock"} and len(verdicts) == 2
    text = verdicts[0].text  # type: ignore[union-attr]
    assert "'x'" in text and "'y'" in text and "train.py:1" in text and "train.py:2" in text


def test_a_stall_is_warned_about_once_in_a_while_by_one_rank_and_then_fails() -> None:
    settings = Settings(stall_warn_s=20, stall_fail_s=600)
    watch, other = StallWatch(0, settings), StallWatch(1, settings)
    seen: list[tuple[float, str]] = []
    for age_s in range(0, 601):
        x = pending("x", (0, 1, 2), (0, 1), float(age_s))
        snapshot = world({0: [x], 1: [x], 2: None}, [x])
        assert other.look(snapshot) == []
        seen += [(age_s, type(action).__name__) for action in watch.look(snapshot)]
    assert seen == [
        (20, "StallWarning"),
        (60, "StallWarning"),
        (180, "StallWarning"),
        (540, "StallWarning"),
        (600, "StallFailure"),
    ]


def test_the_warning_names_everything() -> None:
    x = pending("allreduce.loss", (0, 1, 2), (0, 2), 21.0)
    text = warning_text(StallWarning((x,), (1,), 21.0), {1: 'File "train.py", line 7, in save'}, 600.0)
    for part in ("rank 1", "allreduce.loss", "ranks 0, 2", "train.py:1", "train.py:3", "line 7, in save", "600 s"):
        assert part in text, part


def test_stall_checks_can_be_switched_off_but_deadlocks_cannot() -> None:
    watch = StallWatch(0, Settings(stall_check=False))
    x, y = pending("x", (0, 1), (0,), 9999.0), pending("y", (0, 1), (1,), 9999.0)
    assert watch.look(world({0: [x], 1: None}, [x])) == []
    watch.look(world({0: [x], 1: [y]}, [x, y]))
    assert watch.look(world({0: [x], 1: [y]}, [x, y]))


def silent_world(*silent: int, missing: bool = False) -> Snapshot:
    """Rank 0 to 2 wait for an operation under way; those named do not answer."""
    ranks = tuple(
        RankState(rank, 1000 + rank, rank not in silent, () if rank in silent else (("", ()),), rank in silent)
        for rank in range(3)
    )
    return Snapshot(1, ranks, (pending("x", (0, 1, 2), (0, 1), age_s=0.5),) if missing else ())


def test_a_silent_rank_is_told_of_by_one_and_given_up_by_all() -> None:
    settings = Settings(stall_warn_s=2, stall_fail_s=10)
    watches = [StallWatch(rank, settings) for rank in (0, 1)]
    told: list[list[tuple[int, str]]] = [[], []]
    for now in range(12):
        for watch, heard in zip(watches, told, strict=True):
            heard += [(now, type(action).__name__) for action in watch.look(silent_world(2), float(now))]
    assert told[0] == [(2, "SilentRank"), (6, "SilentRank"), (10, "StallGiveUp"), (11, "StallGiveUp")]
    assert told[1] == [(10, "StallGiveUp"), (11, "StallGiveUp")]


def test_a_rank_that_answers_again_starts_anew() -> None:
    watch = StallWatch(0, Settings(stall_warn_s=2, stall_fail_s=4))
    for now in range(20):
        silent = (2,) if now % 3 else ()
        assert watch.look(silent_world(*silent), float(now)) == []


def test_a_silent_rank_that_has_not_submitted_is_told_of_with_what_it_misses_and_given_up() -> None:
    watch = StallWatch(0, Settings(stall_warn_s=2, stall_fail_s=4))
    told = {now: watch.look(silent_world(2, missing=True), float(now)) for now in range(5)}
    assert [now for now, actions in told.items() if actions] == [2, 4]
    [silence], [verdict] = told[2], told[4]
    assert isinstance(silence, SilentRank) and "'x' of ranks 0-2" in silence_text(silence, 4.0)
    assert isinstance(verdict, StallGiveUp) and verdict.rank == 2


def test_who_waits_for_the_last_operation_of_a_name_is_not_stuck_in_the_next() -> None:
    """Ranks 0 and 1 are a step ahead; rank 2 still waits for its part of the last step, under the same name."""
    x = pending("x", (0, 1, 2), (0, 1))
    assert find_deadlock(world({0: [x], 1: [x], 2: [x]}, [x])) == ()
