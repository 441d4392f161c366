"""Numbers of timelines whose answers are known exactly."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.timeline import traces
from tests.timeline.traces import Op, op

from hora.timeline.clock import put_together
from hora.timeline.measure import measure, steps_of
from hora.timeline.numbers import Numbers
from hora.timeline.read import TimelineOperation, read
from hora.timeline.sweep import RankOperation

MS = 1000


def numbers(place: Path, ops: list[Op], ranks: tuple[int, ...] = (0, 1), **more: object) -> Numbers:
    tracks = [read(traces.hora(place / f"{r}.json", ops, r, 10 * r, **more)) for r in ranks]  # type: ignore[arg-type]
    put_together(tracks)
    return measure(tracks)


def blocking(steps: int = 12) -> list[Op]:
    """Each step of 10 ms: rank 1 comes 3 ms late, 1 ms in the queue, 2 ms moving, 4 ms of nothing."""
    starts = [1 * MS + 10 * MS * step for step in range(steps)]
    return [op("g", [t, t + 3 * MS], t + 4 * MS, t + 6 * MS, shape=(1_000_000,)) for t in starts]


@pytest.mark.parametrize("ranks", [(0, 1), (0,), (1,)])
def test_parts_of_the_time_add_up(tmp_path: Path, ranks: tuple[int, ...]) -> None:
    found = numbers(tmp_path, blocking(), ranks)
    zero, one = found.ranks  # the one without a file is seen through the other's
    assert (zero.own_file, one.own_file) == (0 in ranks, 1 in ranks)
    assert (zero.window_us, zero.steps, zero.step_us) == (100 * MS, 10, 10 * MS)
    assert (zero.move_us, zero.queue_us, zero.wait_us, zero.idle_us) == (20 * MS, 10 * MS, 30 * MS, 40 * MS)
    assert (one.move_us, one.queue_us, one.wait_us, one.idle_us) == (20 * MS, 10 * MS, 0, 70 * MS)
    assert zero.blocking and zero.exposed_us == 60 * MS and zero.wait_for_us == {1: 30 * MS}
    assert zero.late_steps == {1: 10}
    assert [(late.last, late.of, late.median_us) for late in found.late] == [(0, 10, 0.0), (10, 10, 3 * MS)]
    (kind,) = found.kinds
    assert kind.bytes_per_s == pytest.approx(4_000_000 / 2e-3)


def test_start_up_is_neither_late_nor_how_data_moves(tmp_path: Path) -> None:
    """Before the first step a broadcast of 100 MB, to which rank 0 comes a second late."""
    start = op("start", [1_000_000, 0], 1_000_000, 1_500_000, kind="BROADCAST", shape=(25_000_000,))
    later = [
        op("g", [t, t + 3 * MS], t + 4 * MS, t + 6 * MS, shape=(1_000_000,))
        for t in range(2_000_000, 2_000_000 + 12 * 10 * MS, 10 * MS)
    ]
    found = numbers(tmp_path, [start, *later])
    assert [(late.last, late.of) for late in found.late] == [(0, 10), (10, 10)]
    assert [(kind.kind, kind.operations) for kind in found.kinds] == [("ALLREDUCE", 10)]


def test_only_what_follows_a_steps_last_submission_is_exposed(tmp_path: Path) -> None:
    """a is submitted at 0 and done at 7, b submitted at 4 and done at 9, of steps of 20 ms."""
    ops = []
    for t in range(MS, 12 * 20 * MS, 20 * MS):
        ops.append(op("a", [t, t], t, t + 7 * MS))
        ops.append(op("b", [t + 4 * MS, t + 4 * MS], t + 7 * MS, t + 9 * MS))
    time = numbers(tmp_path, ops).ranks[0]
    assert not time.blocking
    assert time.share(time.in_flight_us) == pytest.approx(9 / 20)
    assert time.share(time.exposed_us) == pytest.approx(5 / 20)


def test_batches(tmp_path: Path) -> None:
    ops = []
    for t in range(MS, 6 * 10 * MS, 10 * MS):
        ops += [op(f"g{i}", [t, t], t + 10, t + 110, shape=(1024,), fused=3) for i in range(3)]
        ops.append(op("big", [t + 200, t + 200], t + 200, t + 1200, shape=(1 << 18,)))
    fusion = numbers(tmp_path, ops).fusion
    assert (fusion.operations, fusion.batches, fusion.tiny, fusion.per_step) == (16, 8, 4, 2)  # of 6 steps, 4
    assert (fusion.tiny_us, fusion.bytes) == (100, 4 * (3 * 4096 + (1 << 20)))
    slowest, *rest = numbers(tmp_path, ops).tensors
    assert (slowest.name, slowest.nbytes, slowest.move_us) == ("big", 1 << 20, 1000)
    assert [tensor.move_us for tensor in rest] == pytest.approx([100 / 3] * 3)


@pytest.mark.parametrize("version", ["0.15", "0.28"])
def test_horovods_batches_are_those_that_move_at_once(tmp_path: Path, version: str) -> None:
    ops = []
    for t in range(MS, 6 * 10 * MS, 10 * MS):
        ops += [op(f"g{i}", [t, t + 50], t + 60 + i, t + 160 + i) for i in range(4)]
        ops.append(op("late", [t + 300, t + 300], t + 300, t + 400))
    track = read(traces.horovod(tmp_path / "t.json", ops, version))
    put_together([track])
    found = measure([track])
    assert (found.fusion.operations, found.fusion.batches) == (20, 8)
    assert [time.rank for time in found.ranks] == [0, 1]


def flown(*names: str, **sizes: int) -> list[RankOperation]:
    return [
        RankOperation(TimelineOperation(name, "ALLREDUCE", 0, {}, nbytes=sizes.get(name, 4)), 0, -1) for name in names
    ]


@pytest.mark.parametrize(
    ("names", "starts"),
    [
        (["barrier", "p", "p", *["g", "h"] * 5, "p"], [3, 5, 7, 9, 11]),
        ([*["g", "loss", "loss", "loss", "loss"] * 4], [0, 5, 10, 15]),
        ([*["allreduce.g", "allreduce.hora.preempted"] * 4, "allreduce.hora.preempted"], [0, 2, 4, 6]),
        (["a.gradients.0.w", "a.gradients.0.roll.0", *["a.gradients.0.bucket.1"] * 4], [0, 2, 3, 4, 5]),
        (["a.gradients.0.w", "a.gradients.0.roll.0", *["a.gradients.0.g", "a.gradients.0.roll.2"] * 3], [0, 2, 4, 6]),
        (["allreduce.hora.preempted"] * 3, [0, 1, 2]),
        (["a", "b", "a", "b"], []),
    ],
)  # fmt: skip
def test_steps_are_those_of_what_moves_most(names: list[str], starts: list[int]) -> None:
    """Neither start-up, nor an epoch's end, nor what comes several times a step, nor Hora's own talk makes a step."""
    assert steps_of(flown(*names, g=4096, h=64)) == starts


def test_who_begins_late_to_move_is_waited_for(tmp_path: Path) -> None:
    ops = [Op("g", {0: t, 1: t}, {0: t + 100, 1: t + 600}, {0: t + 1000, 1: t + 1000})
           for t in range(MS, 8 * 5 * MS, 5 * MS)]  # fmt: skip
    zero, one = numbers(tmp_path, ops).ranks
    assert zero.wait_for_us == {1: 6 * 500} and one.wait_for_us == {}
    assert zero.move_us == one.move_us == 6 * 400


def test_data_has_moved_when_the_first_rank_has_it(tmp_path: Path) -> None:
    """As with gradients in shared memory, whose end a worker notices when it passes by."""
    ops = [Op("g", {0: t, 1: t}, {0: t, 1: t}, {0: t + 2000, 1: t + 500}) for t in range(MS, 8 * 5 * MS, 5 * MS)]
    assert numbers(tmp_path, ops).kinds[0].move_us == 6 * 500  # without the first and the last step


def test_gaps_are_placed(tmp_path: Path) -> None:
    def later(o: Op) -> Op:
        return op("g", [t + 50 * MS for t in o.arrivals.values()], o.begins[0] + 50 * MS, o.ends[0] + 50 * MS)

    shifted = [o if i < 6 else later(o) for i, o in enumerate(blocking())]
    found = numbers(tmp_path, shifted)
    assert (found.gaps[0].rank, found.gaps[0].length_us) == (1, 57 * MS)
    assert (found.gaps[1].rank, found.gaps[1].length_us, found.gaps[1].after, found.gaps[1].before) == (
        0,
        54 * MS,
        "g",
        "g",
    )


def test_arrivals_noted_at_agreement_are_not_believed(tmp_path: Path) -> None:
    found = numbers(tmp_path, blocking(), ticks="agreed", label="GLOO")
    assert not found.arrivals_known
    assert found.ranks[0].wait_us == 0
