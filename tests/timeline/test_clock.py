"""Offsets that were put in are found again, within the error that is stated."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.timeline import traces
from tests.timeline.traces import Op, op

from hora.timeline.clock import align, put_together
from hora.timeline.read import Track, read


def job(seed: int, steps: int = 20, late_us: int = 0) -> list[Op]:
    """Two ranks that begin and end within 400 µs of one another."""
    draw, at, ops = random.Random(seed), 5_000, []
    for _ in range(steps):
        for name in ("a", "b"):
            arrivals = {0: at + draw.randrange(500), 1: at + draw.randrange(500) + late_us}
            agreed = max(arrivals.values())
            begins = {rank: agreed + draw.randrange(400) for rank in (0, 1)}
            over = max(begins.values()) + 300
            ends = {rank: over + draw.randrange(100) for rank in (0, 1)}
            ops.append(Op(name, arrivals, begins, ends))
            at = over + 1000
    return ops


def both(place: Path, ops: list[Op], starts: tuple[int, int], **more: object) -> list[Track]:
    return [read(traces.hora(place / f"{r}.json", ops, r, starts[r], **more)) for r in (0, 1)]  # type: ignore[arg-type]


@given(seed=st.integers(0, 1000), starts=st.tuples(st.integers(0, 4000), st.integers(0, 4000)))
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_shared_arrivals_give_the_offset_exactly(tmp_path: Path, seed: int, starts: tuple[int, int]) -> None:
    clock = align(both(tmp_path, job(seed), starts))[1]
    assert (clock.how, clock.offset_us) == ("arrivals", starts[1] - starts[0])


@given(
    seed=st.integers(0, 1000),
    starts=st.tuples(st.integers(0, 4000), st.integers(0, 4000)),
    wrong=st.integers(-9999, 9999),
)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_ends_give_it_within_the_stated_error(tmp_path: Path, seed: int, starts: tuple[int, int], wrong: int) -> None:
    tracks = both(tmp_path, job(seed), starts, ticks="own", label="GLOO")
    assert tracks[1].epoch_us is not None
    tracks[1].epoch_us += wrong  # the hosts' wall clocks differ
    clock = align(tracks)[1]
    assert clock.how == "ends" and clock.error_us is not None
    assert abs(clock.offset_us - (starts[1] - starts[0])) <= clock.error_us <= 1000


def test_a_drift_is_followed(tmp_path: Path) -> None:
    ops = job(3, steps=400)
    tracks = both(tmp_path, ops, (0, 0), ticks="own")

    def drifted(times: dict[int, int]) -> dict[int, int]:
        return {rank: at + at // 200 for rank, at in times.items()}

    slow = [Op(o.name, drifted(o.arrivals), drifted(o.begins), drifted(o.ends)) for o in ops]
    tracks[1] = both(tmp_path, slow, (0, 0), ticks="own")[1]
    clock = align(tracks)[1]
    assert clock.drift == pytest.approx(-0.005, rel=0.02)
    last = tracks[1].operations[-1]
    true = next(o for o in reversed(ops) if o.name == last.name).ends[1]
    assert clock.error_us is not None and abs(clock.at(last.end_us) - true) <= clock.error_us + 1


@pytest.mark.parametrize("ticks", ["all", "own"])
def test_one_rank_began_to_record_a_round_later(tmp_path: Path, ticks: str) -> None:
    ops = job(5)
    one = read(traces.hora(tmp_path / "0.json", ops, 0, 100, ticks=ticks))
    two = read(traces.hora(tmp_path / "1.json", ops[2:], 1, 1500, ticks=ticks))
    clock = align([one, two])[1]
    assert clock.shift == 1
    assert abs(clock.offset_us - 1400) <= (clock.error_us or 0)
    put_together([one, two])
    assert {o.round for o in one.operations} >= {o.round for o in two.operations} == set(range(1, 20))


def test_arrivals_of_both_files_are_put_together(tmp_path: Path) -> None:
    ops = job(7, late_us=2000)
    tracks = both(tmp_path, ops, (0, 777), ticks="own")
    clocks = put_together(tracks)
    error = clocks[1].error_us or 0
    start = min(ops[0].arrivals.values())
    for o, found in zip(ops, tracks[0].operations, strict=True):
        assert found.ticks[0] == o.arrivals[0] - start
        assert abs(found.ticks[1] - (o.arrivals[1] - start)) <= error + 1


def test_without_a_common_operation_it_is_the_wall_clock_or_nothing(tmp_path: Path) -> None:
    one = read(traces.hora(tmp_path / "0.json", [op("a", [1, 2], 3, 4)], 0, 0))
    two = read(traces.hora(tmp_path / "1.json", [op("b", [61, 62], 63, 64)], 1, 60))
    clock = align([one, two])[1]
    assert (clock.how, clock.offset_us, clock.error_us) == ("wall clocks", 60, None)
    one.epoch_us = None
    assert align([one, two])[1].how == "nothing"


def test_clocks_that_no_offset_fits_are_said_to(tmp_path: Path) -> None:
    ops = job(9, steps=30)
    other = [o._replace(ends={r: t + 90_000 * (i % 7) for r, t in o.ends.items()},
                        begins={r: t + 90_000 * (i % 7) for r, t in o.begins.items()},
                        arrivals={r: t + 90_000 * (i % 7) for r, t in o.arrivals.items()}) for i, o in
             enumerate(job(11, steps=30))]  # fmt: skip
    one = read(traces.hora(tmp_path / "0.json", ops, 0, ticks="own"))
    two = read(traces.hora(tmp_path / "1.json", other, 1, ticks="own"))
    assert align([one, two])[1].error_us is None
