"""Timing by turns, in a world of one: who is called when, and who is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import torch

import hora.torch as hvd
from hora.bench.contenders import TimedTask
from hora.bench.rounds import WARM_UP_CALLS, check, take_turns


@pytest.fixture(autouse=True)
def world_of_one() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


def test_everybody_has_every_turn_and_who_begins_moves_on() -> None:
    order: list[str] = []
    tasks = {key: TimedTask([torch.zeros(1)], lambda key=key: order.append(key), sums=False) for key in "abc"}  # type: ignore[misc]
    timings = take_turns(tasks, rounds=3, round_s=0.0)  # so short that a turn is one call
    assert order[-9:] == ["a", "b", "c", "b", "c", "a", "c", "a", "b"]
    assert set(Counter(order).values()) == {2 * WARM_UP_CALLS + 3}
    for timing in timings.values():
        assert len(timing.seconds) == 3 and timing.calls == 1 and min(timing.seconds) > 0


def test_quick_calls_fill_a_turn() -> None:
    [timing] = take_turns({"a": TimedTask([], lambda: None, sums=False)}, rounds=1, round_s=0.001).values()
    assert timing.calls > 100


def test_a_contender_that_sums_wrongly_is_not_timed() -> None:
    buffer = torch.empty(4)
    with pytest.raises(AssertionError, match=r"wrong: 1 of 4|summed wrongly.*1 of 4"):
        check("broken", TimedTask([buffer], lambda: buffer[2].add_(1)))


def test_checked_buffers_are_left_at_zero() -> None:
    buffer = torch.empty(4)
    check("fine", TimedTask([buffer], lambda: None))  # alone, the sum is what was brought
    assert buffer.tolist() == [0.0] * 4
