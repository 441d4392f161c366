"""MPICH, in a virtual environment of its own: an environment has room for one MPI, and the project's has Open MPI.

``make test`` makes it. Everything but MPI comes from the environment that runs the
tests.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

__all__ = ["mpich_bin"]

VENV = Path(sys.prefix).with_name(Path(sys.prefix).name + "-mpich")


def mpich_bin() -> Path:
    """Where its ``mpiexec`` and ``python`` are."""
    if not (VENV / "bin" / "mpiexec").exists():
        pytest.skip(f"no {VENV.name}: run 'make {VENV.name}/.ready'")
    return VENV / "bin"
