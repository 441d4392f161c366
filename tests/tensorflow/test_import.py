"""Importing ``hora.tensorflow``: what it brings, and what it says without TensorFlow."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

BROUGHT = """
import os, sys, tensorflow
before = set(sys.modules)
import hora.tensorflow
print(*sorted(set(sys.modules) - before))
"""
WITHOUT = """
import sys
sys.modules["tensorflow"] = None
import hora.tensorflow
"""


def _python(program: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(Path(__file__).parents[2] / "src"), "PATH": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=timeout_s
    )


@pytest.mark.timeout(240)
@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")
def test_import_brings_little() -> None:
    """What is slow to import stays out until it is needed; how long it takes is for ``hora bench launch`` to say."""
    done = _python(BROUGHT, 200)
    assert done.returncode == 0, done.stderr
    brought = set(done.stdout.split())
    assert "hora.tensorflow.collectives" in brought
    heavy = {"torch", "keras", "cloudpickle", "rich", "click", "psutil", "asyncio", "statistics"}
    not_here = {f"hora.tensorflow.{name}" for name in ("optimizer", "tape", "functions", "sync_batch_norm", "sessions")}
    not_here |= {
        "hora.keras",
        "hora.torch",
        "hora.engine.hub",
        "hora.engine.message_backend",
        "hora.launch",
        "hora.cli",
    }
    assert not brought & (heavy | not_here)


def test_without_tensorflow_it_says_what_to_install() -> None:
    done = _python(WITHOUT, 60)
    assert done.returncode == 1
    assert "ImportError: hora.tensorflow needs TensorFlow" in done.stderr
    assert "pip install tensorflow-cpu" in done.stderr and "hora[tensorflow]" in done.stderr
