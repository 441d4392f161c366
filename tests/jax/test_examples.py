"""The JAX pair of examples; and what is said where JAX is missing. No JAX in this process."""

from __future__ import annotations

import difflib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.launch.jobs import clean_environment, run_hora

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "jax"
WITHOUT_JAX = """
import sys
sys.modules["jax"] = None
try:
    import hora.jax
except ImportError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")
def test_it_learns_and_all_workers_end_with_the_same_weights() -> None:
    done = run_hora(
        "run", "-np", "2", sys.executable, EXAMPLES / "scaled.py", "--images", "3000", "--epochs", "1", timeout_s=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    reached = re.findall(r"epoch 1  accuracy ([\d.]+)%", done.stdout)
    assert len(reached) == 2 and len(set(reached)) == 1 and float(reached[0]) > 30  # of ten patterns, by chance 10


def test_five_lines_scale_the_plain_script() -> None:
    before, after = ((EXAMPLES / name).read_text().splitlines() for name in ("plain.py", "scaled.py"))
    new = [line for line in difflib.ndiff(before, after) if line.startswith("+") and line[2:].strip()]
    assert len(new) == 5 and all("hvd" in line for line in new)


def test_without_jax_it_is_said_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_JAX], env=clean_environment(), capture_output=True, text=True, timeout=60
    )
    assert "pip install 'hora[jax]'" in done.stdout, done.stderr
