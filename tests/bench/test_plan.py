"""Merging what ranks measured, and sizes."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hora.bench.plan import BenchPlan, BenchRow, RankReport, Result, cell, merge, parse_size
from hora.errors import UsageError
from hora.text import size_text


def report(rank: int, seconds: list[float]) -> RankReport:
    return RankReport(rank=rank, seconds={"4 B": {"hora": seconds}}, calls={"4 B": {"hora": 10}}, versions={})


def test_a_round_is_as_slow_as_its_slowest_rank() -> None:
    [row] = merge([report(0, [1e-6, 9e-6, 3e-6]), report(1, [2e-6, 1e-6, 3e-6])], {"4 B": 4})
    assert row.cells["hora"].median_us == 3.0  # of 2, 9, 3
    assert row.bytes == 4 and row.cells["hora"].calls_per_round == 10


def test_ranks_with_different_numbers_of_rounds_are_refused() -> None:
    with pytest.raises(ValueError):
        merge([report(0, [1e-6]), report(1, [1e-6, 2e-6])], {})


@given(st.lists(st.floats(1e-7, 10.0), min_size=1, max_size=50))
def test_marks_are_in_order(seconds: list[float]) -> None:
    found = cell(seconds)
    assert found.low_us <= found.median_us <= found.high_us
    assert found.rounds == len(seconds)


@given(st.integers(1, 1 << 34))
def test_sizes_survive_being_written_and_read(count: int) -> None:
    assert parse_size(str(4 * count)) == 4 * count
    for unit in (1 << 10, 1 << 20, 1 << 30):
        small = count % 999 + 1
        assert parse_size(size_text(small * unit)) == small * unit


@pytest.mark.parametrize("text", ["", "x", "-4", "4X", "0", "1.5K", "5", "٤"])
def test_sizes_that_make_no_sense_are_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError):
        parse_size(text)


def test_results_and_plans_survive_json() -> None:
    row = BenchRow(name="4 B", cells={"hora": cell([1e-6])}, bytes=4)
    machine: dict[str, str | int] = {"cpu": "x", "cores": 2}
    result = Result(bench="allreduce", np=2, command="hora bench", rows=[row], machine=machine, versions={})
    assert msgspec.json.decode(msgspec.json.encode(result), type=Result) == result
    plan = BenchPlan(bench="gradients", contenders=("hora",))
    assert msgspec.json.decode(msgspec.json.encode(plan), type=BenchPlan) == plan
