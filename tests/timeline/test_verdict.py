"""The planted bottleneck is the one that is named, and what it would gain is what was planted."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.timeline import traces
from tests.timeline.test_measure import MS, numbers
from tests.timeline.traces import Op, op

from hora.config.settings import Settings
from hora.timeline import verdict
from hora.timeline.clock import put_together
from hora.timeline.measure import measure
from hora.timeline.read import read
from hora.timeline.verdict import findings

BIG, SMALL = (4 << 20,), (100,)


def slow_rank(of: int, slow: int) -> list[Op]:
    late = [0] * of
    late[slow] = 40 * MS
    return [op("g", [t + x for x in late], t + 40 * MS, t + 45 * MS, shape=BIG) for t in range(0, 1_000 * MS, 100 * MS)]


def tiny() -> list[Op]:
    draw, ops = random.Random(1), []
    for step in range(10):
        for i in range(100):
            t = step * 20 * MS + i * 150
            arrivals = [t + draw.randrange(40), t + draw.randrange(40)]
            ops.append(op(f"g{i}", arrivals, max(arrivals) + 5, t + 140, shape=SMALL))
    return ops


def large() -> list[Op]:
    return [op("g", [t, t + 100], t + 200, t + 60 * MS, shape=BIG) for t in range(0, 1_000 * MS, 100 * MS)]


def in_turns() -> list[Op]:
    return [
        op("g", [t + 40 * MS * (i % 2), t + 40 * MS * (1 - i % 2)], t + 40 * MS, t + 42 * MS, shape=BIG)
        for i, t in enumerate(range(0, 2_000 * MS, 100 * MS))
    ]


def slow_handling() -> list[Op]:
    return [op("g", [t, t + 10], t + 20, t + 30 * MS, shape=(50_000,)) for t in range(0, 1_000 * MS, 100 * MS)]


def computing() -> list[Op]:
    return [op("g", [t, t + 10], t + 20, t + 2 * MS, shape=BIG) for t in range(0, 1_000 * MS, 100 * MS)]


@pytest.mark.parametrize(
    ("ops", "kind", "rank", "gain"),
    [
        (slow_rank(2, 1), "straggler", 1, 0.4),
        (slow_rank(2, 0), "straggler", 0, 0.4),
        (slow_rank(4, 2), "straggler", 2, 0.4),
        (tiny(), "tiny operations", None, 0.7),
        (large(), "bandwidth", None, 0.3),
        (in_turns(), "imbalance", None, 0.1),
        (slow_handling(), "latency", None, 0.15),
        (computing(), "not communication", None, 0.02),
    ],
    ids=["slow 1 of 2", "slow 0 of 2", "slow 2 of 4", "tiny", "large", "in turns", "slow handling", "computing"],
)
@pytest.mark.parametrize("how", ["all files", "rank 0's file", "Horovod"])
def test_what_was_planted_is_named(
    tmp_path: Path, ops: list[Op], kind: str, rank: int | None, gain: float, how: str
) -> None:
    if how == "Horovod":
        track = read(traces.horovod(tmp_path / "t.json", ops, "0.28"))
        put_together([track])
        found = findings(measure([track]))
    else:
        found = findings(numbers(tmp_path, ops, tuple(range(len(ops[0].arrivals))) if how == "all files" else (0,)))
    assert (found[0].kind, found[0].rank) == (kind, rank), found
    assert found[0].gain == pytest.approx(gain, rel=0.3)


def test_copies_of_horovod(tmp_path: Path) -> None:
    file = traces.horovod(tmp_path / "t.json", large(), "0.15", label="MEMCPY_IN")
    track = read(file)
    put_together([track])
    for operation in track.operations:  # 50 ms in the buffer, 10 ms on the network
        copy = operation.activities[1]
        network = type(copy)("NCCL_ALLREDUCE", copy.end_us - 10 * MS, copy.end_us)
        copy.end_us -= 10 * MS
        operation.activities.append(network)
    found = findings(measure([track]))
    assert found[0].kind == "copies" and found[0].gain == pytest.approx(0.5, rel=0.05)


def test_a_batch_holds_what_the_engine_lets_it_hold() -> None:
    assert Settings().fusion_bytes == verdict._FUSED_BYTES
