"""Turns: which step is whose, what is left out, and what comes of it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import pytest

from hora.engine import session
from hora.errors import UsageError
from hora.workloads.options import WorkloadOptions
from hora.workloads.turns import BLOCK, MODES, WARM_UP, Turns, steps_for, taken


@pytest.fixture
def one_worker() -> Iterator[None]:
    session.init()
    yield
    session.shutdown()


def test_blocks_rotate_and_their_first_steps_are_left_out(one_worker: None) -> None:
    """Two rounds after eight steps to warm up; every step takes its number in seconds."""
    steps = steps_for(BLOCK + 1) + 2
    rested: list[bool] = []
    turns = Turns(steps, rested.append)
    modes = []
    for number in range(1, steps + 1):
        modes.append(turns.mode)
        ends = turns.step(float(number), number / 100)
        assert ends == (number == WARM_UP + 2 or (number >= 8 and (number - 8) % BLOCK == 0))
    order = ["limit", "in step", "together", "in step", "together", "limit"]
    assert modes == [""] * 8 + [mode for mode in order for _ in range(BLOCK)]
    assert rested == [True, *[mode != "together" for mode in order], False], "and at the end all is as it was"
    for mode in MODES:
        begins = [8 + BLOCK * place for place, block in enumerate(order) if block == mode]
        expected = [float(begin + step) for begin in begins for step in range(2, BLOCK + 1)]
        assert turns.found[mode] == [expected]
        assert turns.found["data"][mode] == [pytest.approx(statistics.median(expected) / 100)]
    assert 0 < turns.found["meeting"] < 1


def test_they_are_taken_only_where_asked_for_and_possible(one_worker: None) -> None:
    def never(resting: bool) -> None:
        raise AssertionError

    assert Turns.wanted(100, never) is None
    with taken(WorkloadOptions.of({"max_steps": 100})):
        assert Turns.wanted(100, never) is not None
    assert Turns.wanted(100, never) is None
    with (
        pytest.raises(UsageError, match=r"--max-steps 20.*Give --max-steps 21"),
        taken(WorkloadOptions.of({"max_steps": 20})),
    ):
        pass
