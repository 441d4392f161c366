"""`hora lab calibrate`: what it writes is what `hora plan` reads. What is measured is tested in tests/predict."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.launch.jobs import run_hora

from hora.cli.lab import lab
from hora.predict import calibrate
from hora.predict.calibration import Calibration, LinkFacts

MEASURED = Calibration(
    compute_s=0.31, batch=64, gradient_bytes=102e6, per_host=2, inside=LinkFacts(bytes_per_s=8e9, latency_s=5e-6),
    exposed=0.4, jitter=0.01, scatter=0.02, about="ResNet-50, measured here",
)  # fmt: skip


def test_a_plan_is_made_from_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def measured(model: str, np: int, *, rounds: int, progress: Callable[[str], None]) -> Calibration:
        asked.append((model, np, rounds))
        return MEASURED

    monkeypatch.setattr(calibrate, "calibrate", measured)
    file, plan = tmp_path / "new" / "here.json", tmp_path / "plan.json"
    done = CliRunner().invoke(lab, ["calibrate", "--model", "mlp", "-np", "4", "-o", str(file)])
    assert done.exit_code == 0, done.output
    assert asked == [("mlp", 4, 11)]
    assert "310 ms of one worker with 64 samples" in done.output and f"--calibration {file}" in done.output
    said = run_hora("plan", "--workers", "8", "--batch", "64", "--calibration", file, "--link", "1gbit", "--json", plan)
    assert said.returncode == 0, said.stderr
    step_s = json.loads(plan.read_text())["predicted"]["here"]["step_s"]["middle"]
    assert 0.31 + 0.4 * 102e6 / 1.25e8 < step_s < 2, "four hosts over a gigabit move each byte once or more"


@pytest.mark.parametrize("given", [["-np", "1"], ["--model", "resnet999"]])
def test_what_cannot_be_calibrated_is_refused(tmp_path: Path, given: list[str]) -> None:
    done = CliRunner().invoke(lab, ["calibrate", *given, "-o", str(tmp_path / "here.json")])
    assert done.exit_code == 2 and given[1] in done.output
