"""The examples run, learn, and need no launcher for one worker."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
JOB = ROOT / "examples" / "first_job.py"
TIMEOUT_S = 100

pytestmark = pytest.mark.slow


def run(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("launcher", [(), ("-m", "hora", "run", "-np", "2", sys.executable)], ids=["alone", "two"])
def test_first_job_learns(tmp_path: Path, launcher: tuple[str, ...]) -> None:
    file = tmp_path / "result.json"
    said = run(*launcher, str(JOB), "--epochs", "2", "--images", "4096", "--json", str(file))
    result = json.loads(file.read_text())
    assert result["workers"] == (2 if launcher else 1)
    first, last = result["epochs"]
    assert last["loss"] < first["loss"] and last["accuracy"] > 0.2  # of ten digits, by chance 0.1
    assert said.count("epoch ") == 2  # one rank speaks


def test_demo_compares(tmp_path: Path) -> None:
    said = run(str(ROOT / "examples" / "demo.py"), "--epochs", "1", "--images", "1024", "--quiet")
    assert "speed-up" in said and "1.00x" in said
    assert [line.split()[1] for line in said.splitlines() if line.startswith(("│", "|"))] == ["1", "2"]
