"""Rows, shares and added times of training, and how they are shown."""

from __future__ import annotations

import io

from rich.console import Console

from hora.bench.plan import TRAIN_LABELS, TRAININGS, RankReport, Result
from hora.bench.show import print_result
from hora.bench.train_report import cell_text, lines, merge, remark


def report(rank: int, **seconds: dict[str, list[float]]) -> RankReport:
    calls = {row: dict.fromkeys(contenders, 2) for row, contenders in seconds.items()}
    return RankReport(rank=rank, seconds=seconds, calls=calls, versions={})


def result() -> Result:
    mlp = {"limit": [0.010, 0.020, 0.010], "hora": [0.011, 0.022, 0.012], "ddp": [0.020, 0.040, 0.020]}
    bare = {"limit": [0.050] * 3, "hora": [0.060] * 3, "ddp": [0.100] * 3}
    return Result(
        bench="train", np=2, command="hora bench train", rows=merge([report(0, mlp=mlp, gradients=bare)]),
        machine={"cpu": "x", "cores": 2, "memory_bytes": 1 << 33, "python": "3.11"}, versions={"hora": "0.1.0"},
        labels=dict(TRAIN_LABELS), notes=["horovod was not measured: it is not installed"],
    )  # fmt: skip


def test_shares_are_compared_within_rounds_not_between_medians() -> None:
    """The second round was twice as slow for everybody, which must not show."""
    row = result().rows[0]
    assert row.shares == {"limit": 1.0, "hora": 0.9091, "ddp": 0.5}
    assert row.images == 64 and row.name == TRAININGS["mlp"].title


def test_a_round_is_as_slow_as_its_slowest_rank() -> None:
    ranks = [report(0, mlp={"limit": [0.01], "hora": [0.01]}), report(1, mlp={"limit": [0.02], "hora": [0.04]})]
    [row] = merge(ranks)
    assert row.shares["hora"] == 0.5 and row.added_us["hora"] == 20_000.0
    assert row.cells["hora"].calls_per_round == 2


def test_columns_say_speed_and_share_or_time_added() -> None:
    mlp, bare = result().rows
    said = [cell_text(mlp, key) for key in ("limit", "hora", "ddp", "horovod")]
    assert said == ["6,400/s", "5,333/s (91 %)", "3,200/s (50 %)", ""]
    assert [cell_text(bare, key) for key in ("limit", "hora")] == ["50.0 ms a step", "+10.0 ms"]
    assert remark(result()).endswith("DDP adds 5.0x what Hora adds")


def test_hora_is_compared_with_in_step_and_ddp_within_rounds() -> None:
    seconds = {"limit": [0.01, 0.02], "in_step": [0.02, 0.04], "hora": [0.025, 0.05], "ddp": [0.03, 0.12]}
    [row] = merge([report(0, mlp=seconds)])
    assert row.versus == {"hora/in_step": 0.8, "hora/ddp": 1.8}
    found = result()
    found.rows = [row]
    headings, line = lines(found)
    assert headings[-2:] == ["Hora / in step", "Hora / DDP"] and line[-2:] == ["0.80x", "1.80x"]


def test_between_hosts_a_column_is_a_network_and_floors_stand_below_the_references() -> None:
    seconds = {"limit": [0.01], "in_step": [0.02], "hora": [0.05], "hora_bf16": [0.04]}
    ranks = [report(rank, mlp=seconds) for rank in range(2)]
    ranks[0].floors = {"mlp": {"float32": 0.03, "bf16": 0.005}}
    ranks[1].floors = {"mlp": {"float32": 0.04, "bf16": 0.005}}
    ranks[1].p99 = {"mlp": {"hora": 0.06}}
    rows = merge(ranks)
    assert rows[0].floors_us == {"float32": 40_000.0, "bf16": 10_000.0}  # the slower rank's; never below the limit
    found = result()
    found.rows, found.link_mbit_per_s = rows, 950.0
    assert lines(found) == [
        ["", TRAININGS["mlp"].title],
        ["limit", "10.0 ms ±0%, p99 0 s"],
        ["in step", "20.0 ms ±0%, p99 0 s"],
        ["floor", "40.0 ms"],
        ["floor, bf16", "10.0 ms"],
        ["Hora", "50.0 ms ±0%, p99 60.0 ms"],
        ["Hora bf16", "40.0 ms ±0%, p99 0 s"],
        ["Hora / in step", "0.40x"],
        ["Hora / floor", "0.80x"],
        ["Hora bf16 / floor, bf16", "0.25x"],
    ]


def test_nothing_is_remarked_where_nothing_was_compared() -> None:
    alone = merge([report(0, gradients={"limit": [0.05], "hora": [0.06]})])
    assert remark(Result(bench="train", np=2, command="", rows=alone, machine={}, versions={})) == ""
    faster = merge([report(0, gradients={"limit": [0.05], "hora": [0.04], "ddp": [0.06]})])
    assert remark(Result(bench="train", np=2, command="", rows=faster, machine={}, versions={})) == ""


def test_a_log_shows_all_of_it() -> None:
    out = io.StringIO()
    print_result(result(), Console(file=out))
    text = out.getvalue()
    for part in ("training", "5,333/s (91 %)", "+10.0 ms", "without communicating", "5.0x", "Note: horovod was not"):
        assert part in text
    assert "Horovod" not in text.split("Median")[0]
