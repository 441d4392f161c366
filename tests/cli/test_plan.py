"""`hora plan`: what it prints is what ``hora.schedule`` computes; wrong values are refused in one message."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.launch.jobs import run_hora

STUDY = ["plan", "--workers", "32", "--batch", "128", "--decay", "30,60,80", "--epochs", "90"]


def test_the_studys_run(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    done = run_hora(*STUDY, "--warmup", "gradual:5", "--json", str(file))
    assert done.returncode == 0, done.stderr
    assert "4,096 = 32 workers x 128" in done.stdout and "313 an epoch" in done.stdout
    written = json.loads(file.read_text())
    rates = [round(epoch["lr"], 4) for epoch in written["epochs"]]
    assert rates[:6] == [0.05, 0.36, 0.67, 0.98, 1.29, 1.6] and len(rates) == 90
    assert [rates[30], rates[60], rates[80]] == [0.16, 0.016, 0.0016]
    assert "Caution" not in done.stdout


def test_a_plan_known_to_fail_is_said_to() -> None:
    done = run_hora("plan", "--workers", "256", "--batch", "128")
    assert done.returncode == 0
    assert "beyond 8192" in done.stdout and "warm up" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--warmup", "steep:5"], "steep"),
        (["--decay", "60,30"], "must rise"),
        (["--base-lr", "-1"], "base_lr=-1"),
        (["--workers", "0"], "0"),
        (["--warmup", "gradual:100"], "longer than the run"),
    ],
)
def test_wrong_values_are_refused(arguments: list[str], said: str) -> None:
    done = run_hora("plan", *arguments)
    assert done.returncode == 2
    assert said in done.stderr and "Traceback" not in done.stderr


def test_time_is_predicted_from_one_step(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    job = ["--step-ms", "400", "--gradient-mb", str(100e6 / 2**20), "--per-host", "4", "--link", "1gb:0us"]
    done = run_hora(*STUDY, *job, "--json", str(file))
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())["predicted"]
    here = found["here"]
    # 100 MB over 8 hosts at 1 GB/s: 175 ms, and 15 ms inside; half of it is taken to be hidden
    assert here["hosts"] == 8 and here["comm_s"] == pytest.approx(0.19, rel=0.02)
    assert here["exposed_s"] == pytest.approx(0.095, rel=0.1)
    assert found["run_s"]["middle"] == pytest.approx(90 * 313 * here["step_s"]["middle"])
    assert here["images_per_s"]["middle"] == pytest.approx(4096 / here["step_s"]["middle"], rel=1e-3)
    assert [row["workers"] for row in found["farther"]["tree"]] == [256, 1024, 4096]
    for text in ("efficiency", "whole run", "4,096", "Assumed: ", "as --link says", "one worker's step of 400 ms"):
        assert text in done.stdout


def test_time_is_predicted_from_the_study_for_imagenet_and_otherwise_only_if_asked(tmp_path: Path) -> None:
    file = tmp_path / "calibration.json"
    file.write_text('{"compute_s": 0.2, "batch": 32, "gradient_bytes": 1e6, "per_host": 2, "about": "my job"}')
    assert "FDR InfiniBand" in run_hora(*STUDY).stdout
    assert "Time is not predicted" in run_hora("plan", "--samples", "60000").stdout
    mine = run_hora("plan", "--samples", "60000", "--calibration", str(file), "--batch", "64").stdout
    assert "from my job" in mine and "batch of 64 follows from that of 32" in mine


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--step-ms", "10", "--calibration", "study"], "Leave one out"),
        (["--step-ms", "0"], "above 0"),
        (["--step-ms", "10", "--link", "quick"], "10gbit:50us"),
        (["--calibration", "nowhere.json"], "nowhere.json"),
    ],
)
def test_what_nothing_can_be_predicted_from_is_refused(arguments: list[str], said: str) -> None:
    done = run_hora("plan", *arguments)
    assert done.returncode == 2
    assert said in done.stderr and "Traceback" not in done.stderr
