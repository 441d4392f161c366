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
    assert "4,096 = 32 workers x 128" in done.stdout and "312 an epoch" in done.stdout
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
