"""The pair in ``examples/tensorflow``: the scaled one trains, and differs from the plain one by the lines it says."""

from __future__ import annotations

import difflib
import importlib.util
import re
import sys
from pathlib import Path

import pytest
from tests.launch.jobs import run_hora

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "tensorflow"


@pytest.mark.timeout(240)
@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")
def test_scaled_trains() -> None:
    command = [sys.executable, FOLDER / "scaled.py", "--epochs", "4", "--images", "2560", "--lr", "0.05"]
    done = run_hora("run", "-np", "2", *command, timeout_s=200, TF_CPP_MIN_LOG_LEVEL="3")
    assert done.returncode == 0, done.stdout + done.stderr
    accuracies = re.findall(r"epoch 4  accuracy (\S+)%", done.stdout)
    assert len(accuracies) == 2 and len(set(accuracies)) == 1 and float(accuracies[0]) > 30, done.stdout


def test_six_lines_differ() -> None:
    plain, scaled = ((FOLDER / name).read_text().splitlines() for name in ("plain.py", "scaled.py"))
    added = [line for line in difflib.ndiff(plain, scaled) if line.startswith("+ ") and line.strip() != "+"]
    assert len(added) == 6, added
    assert "Six lines differ" in "\n".join(scaled)
