"""States in one process; what several workers do with them is in tests/launch/elastic."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from hora.elastic import run as elastic_run
from hora.elastic.order import share, taken
from hora.elastic.state import ObjectState
from hora.engine import session
from hora.errors import DeadlockError, HorovodInternalError, HostsUpdatedInterrupt, MismatchError, UsageError


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    session.init()
    yield
    session.shutdown()


def test_a_commit_copies() -> None:
    state = ObjectState(seen=[1], weights=np.ones(3), nested={"a": [1]})
    state.commit()
    state.seen.append(2)
    state.weights[:] = 7
    state.nested["a"].append(2)
    state.restore()
    assert state.seen == [1] and state.weights.tolist() == [1, 1, 1] and state.nested == {"a": [1]}
    state.seen.append(3)  # what was restored is a copy as well
    state.restore()
    assert state.seen == [1]


def test_the_first_values_are_restored_before_any_commit() -> None:
    state = ObjectState(step=0)
    state.step = 5
    state.restore()
    assert state.step == 0


def test_a_value_that_cannot_be_copied_is_named() -> None:
    with pytest.raises(UsageError, match=r"state\.lock cannot be copied"):
        ObjectState(lock=threading.Lock())


def test_a_fault_restores_and_calls_again_and_a_bug_is_raised() -> None:
    calls: list[int] = []

    @elastic_run.run
    def train(state: ObjectState, error: Exception) -> int:
        calls.append(state.step)  # type: ignore[attr-defined]
        state.step += 1  # type: ignore[attr-defined]
        state.commit()
        state.step += 10  # type: ignore[attr-defined]
        if len(calls) == 1:
            raise error
        return state.step  # type: ignore[attr-defined, no-any-return]

    assert train(ObjectState(step=0), HorovodInternalError("a peer is gone")) == 12
    assert calls == [0, 1]
    for bug in (MismatchError("differ"), DeadlockError("in a circle"), ValueError("the user's own")):
        calls.clear()
        with pytest.raises(type(bug)):
            train(ObjectState(step=0), bug)
        assert calls == [0]


def test_hosts_updated_keeps_what_was_done_and_calls_the_reset_callbacks() -> None:
    resets: list[int] = []
    state = ObjectState(step=0)
    state.register_reset_callbacks([lambda: resets.append(state.step)])  # type: ignore[attr-defined]

    @elastic_run.run
    def train(state: ObjectState) -> int:
        state.step += 1  # type: ignore[attr-defined]
        if state.step == 1:  # type: ignore[attr-defined]
            state.on_hosts_updated(0.0, 1)
            state.check_host_updates()  # not committed, and kept all the same
        return state.step  # type: ignore[attr-defined, no-any-return]

    assert train(state) == 2
    assert resets == [1]


def test_a_fault_in_a_reset_callback_is_a_fault_as_any_other() -> None:
    """Callbacks of Horovod's examples train a step, in which another worker may die."""
    resets: list[int] = []
    state = ObjectState(step=0)

    def callback() -> None:
        resets.append(state.step)  # type: ignore[attr-defined]
        if len(resets) == 1:
            state.step = 99
            raise HorovodInternalError("a peer is gone")

    state.register_reset_callbacks([callback])

    @elastic_run.run
    def train(state: ObjectState) -> int:
        if state.step == 0:  # type: ignore[attr-defined]
            state.step = 1
            state.commit()
            raise HorovodInternalError("a peer is gone")
        return state.step  # type: ignore[attr-defined, no-any-return]

    assert train(state) == 1
    assert resets == [1, 1]


def test_commit_raises_hosts_updated_after_it_has_saved() -> None:
    state = ObjectState(step=0)
    state.step = 3
    state.on_hosts_updated()
    with pytest.raises(HostsUpdatedInterrupt):
        state.commit()
    state.step = 4
    state.restore()
    assert state.step == 3


def test_what_is_left_is_shared_out_without_loss_whatever_the_workers() -> None:
    total, batch = 840, 5
    for sizes in ([1] * 168, [4, 4, 3, 2, 1] * 12, [2, 3, 1, 6] * 14):
        done, seen = 0, []
        for size in sizes:
            left = list(range(total))[done:]
            if len(left) < size * batch:
                break
            seen += [i for rank in range(size) for i in share(left, rank, size)[:batch]]
            done = taken(done, batch, size, total)
        assert sorted(seen) == list(range(done)), sizes
    assert share([1, 2, 3], 1, 2) == [2, 1] and share([], 0, 3) == []
