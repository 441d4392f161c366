"""The Keras pair: five lines apart, and both learn."""

from __future__ import annotations

import difflib
import importlib.util
import re
import sys
from pathlib import Path

import pytest
from tests.keras.surroundings import surroundings
from tests.launch.jobs import run_hora

PAIR = Path(__file__).parents[2] / "examples" / "keras"


def test_five_lines_scale_the_plain_script() -> None:
    before, after = ((PAIR / name).read_text().splitlines() for name in ("plain.py", "scaled.py"))
    delta = [line for line in difflib.ndiff(before, after) if line[2:].strip()]
    gone, new = ([line[2:] for line in delta if line[0] == sign] for sign in "-+")
    assert len(new) == 5 and len(gone) <= 5, (gone, new)
    assert all("hvd" in line for line in new)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_scaled_script_learns_and_all_workers_end_with_the_same_model() -> None:
    for module in ("keras", "jax"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    done = run_hora(
        "run", "-np", "2", sys.executable, PAIR / "scaled.py", "--images", "2048", "--epochs", "2", "--lr", "0.05",
        timeout_s=200, **surroundings("jax"),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "made here instead of MNIST" in done.stdout
    reached = [float(found) for found in re.findall(r"Test accuracy: ([\d.]+)%", done.stdout)]
    assert len(reached) == 2 and len(set(reached)) == 1 and reached[0] > 20  # percent, of ten digits, by chance 10
