"""`hora lab throughput`: its figures are those of the steps that the runs wrote down; wrong values are refused."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.launch.jobs import on_terminal, run_hora

from hora.cli.lab import lab
from hora.errors import UsageError

GRID = ["lab", "throughput", "synthetic", "--set", "model=mnist_horovod", "--workers", "1,2", "--batch", "8",
        "--threads", "1", "--inter", "1", "--strategies", "hora,ddp", "--steps", "12", "--repeats", "1"]  # fmt: skip
TIMEOUT_S = 250.0  # on a machine that others use


def steps_of(folder: Path) -> list[float]:
    """Seconds a step, from what the run says of samples and images/s."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    batch = lines[0]["samples"]
    return [batch / line["images_per_s"] for line in lines if "data_s" in line]


@pytest.mark.timeout(300)
def test_figures_are_those_of_the_steps(tmp_path: Path) -> None:
    out, file = tmp_path / "out", tmp_path / "figures.json"
    done = run_hora(*GRID, "--out", out, "--runs", tmp_path, "--json", file, timeout_s=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert "3/4 synthetic, 2 workers, batch 8, 1 thread, inter 1:" in done.stderr and "images/s" in done.stdout
    assert done.stderr.startswith("4 trials, about ") and "\x1b" not in done.stderr and "log:" not in done.stderr
    assert "the first 12 steps (the study took 200)" in " ".join(done.stdout.split())
    written = json.loads(file.read_text())
    assert written["kind"] == "throughput" and written["state"] == "done"
    one, two, ddp = written["rows"]
    check(one, [out / "trials/1w-b8-t1-i1-auto-1"])
    check(two, [out / "trials/2w-b8-t1-i1-auto-1"])
    check(ddp, [out / "trials/2w-b8-t1-i1-ddp-1"])
    assert [row["strategy"] for row in written["rows"]] == ["hora", "hora", "ddp"]
    assert json.loads((out / "trials/2w-b8-t1-i1-ddp-1/result.json").read_text())["strategy"] == "ddp"
    assert any(note.startswith("2 workers, batch 8: Hora ") for note in written["notes"])
    said = " ".join(done.stdout.split())
    fastest = max(written["rows"], key=lambda row: float(row["images_per_s"]))
    assert f"Best: {fastest['workers']} worker" in said and "Why: " in said
    limit = out / "trials/2w-b8-t1-i1-limit-1"
    alone = sum(8 / median(place) for place in (limit, limit / "worker-1"))
    assert two["limit_images_per_s"] == pytest.approx(alone, rel=1e-3)
    for row in (two, ddp):
        assert row["share_of_limit"] == pytest.approx(row["images_per_s"] / alone, rel=1e-3)
    assert one["share_of_limit"] == 1.0 and two["memory_mb"] > one["memory_mb"] > 10

    again = run_hora(*GRID, "--resume", out, "--runs", tmp_path, timeout_s=TIMEOUT_S)  # nothing is left to run
    assert again.returncode == 0, again.stderr
    assert json.loads((out / "experiment.json").read_text())["rows"] == written["rows"]


@pytest.mark.parametrize(("columns", "more"), [(80, {}), (200, {"NO_COLOR": "1"})])
def test_on_a_terminal_it_shows_which_trial_runs_and_leaves_a_table_that_fits(
    tmp_path: Path, columns: int, more: dict[str, str]
) -> None:
    grid = ["lab", "throughput", "synthetic", "--set", "model=mnist_horovod", "--workers", "1", "--batch", "8",
            "--steps", "10", "--repeats", "1", "--out", "out"]  # fmt: skip
    shown = on_terminal(*grid, columns=columns, timeout_s=TIMEOUT_S, cwd=tmp_path, **more)
    assert shown.exit_code == 0, shown.text
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.text)
    assert "1 trial, about" in plain and "starting; 0 s" in plain and "log: out/trials/1w-b8-" in plain
    table = plain[plain.index("synthetic: throughput") :].splitlines()
    assert max(map(len, table)) <= columns and "…" not in plain
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", shown.text)  # no colours


def median(folder: Path) -> float:
    """Of the steady steps: of twelve, five are warm-up."""
    return statistics.median(steps_of(folder)[5:])


def check(row: dict[str, Any], folders: list[Path]) -> None:
    [folder], batch = folders, 8 * row["workers"]
    assert row["images_per_s"] == pytest.approx(batch / median(folder), rel=1e-3)
    assert row["images_per_s_study"] == pytest.approx(batch / statistics.fmean(steps_of(folder)), rel=1e-3)
    assert row["low"] <= row["images_per_s"] <= row["high"] and row["study_steps"] == 12


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["minst"], "there is no workload 'minst'"),
        (["mnist", "--workers", "1,two"], "'two' is not a number"),
        (["mnist", "--batch", "0"], "'0' is not a number above 0"),
        (["mnist", "--transport", "auto,tcp"], "there is no 'tcp'"),
        (["mnist", "--set", "speed=9"], "mnist has no option 'speed'"),
        (["mnist", "--set", "lr"], "no value"),
        (["mnist", "--set", "val_batch=many"], "--set val_batch=many: Expected `int`"),
        (["mnist", "--resume", "nowhere"], "there is no experiment in it"),
        (["synthetic", "--set", "image_size=9"], "too small"),
    ],
)
def test_wrong_values_are_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(lab, ["throughput", *arguments])
    assert isinstance(done.exception, UsageError) and said in str(done.exception)
    assert not list(tmp_path.iterdir())


def test_data_that_is_missing_ends_it_at_once(tmp_path: Path) -> None:
    missing = f"data={tmp_path / 'none'}"
    done = run_hora("lab", "throughput", "mnist", "--runs", tmp_path, "--set", missing, timeout_s=TIMEOUT_S)
    assert done.returncode == 2
    assert "hora data get mnist" in done.stderr and "the rest is not tried" in done.stderr
