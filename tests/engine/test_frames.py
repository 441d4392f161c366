"""Tracebacks without Hora's own frames."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.launch.jobs import clean_environment

from hora.engine.explain import compact_ranks
from hora.engine.frames import final, told
from hora.errors import UsageError

PROGRAM = """
import numpy as np
from hora.engine import session
from hora.engine.process_set import add_process_set
session.init()
def mine():
    add_process_set([7])
mine()
"""


def raised(program: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], env=clean_environment(**environment), capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    return done.stderr


def test_frames_of_hora_are_left_out_of_its_own_errors() -> None:
    short = raised(PROGRAM)
    assert "in mine" in short and "process_set.py" not in short and "hora.errors." in short
    long = raised(PROGRAM, HORA_FULL_TRACEBACK="1")
    assert "process_set.py" in long and len(long) > len(short)


def test_an_exception_from_inside_keeps_them() -> None:
    with pytest.raises(TypeError) as caught:
        compact_ranks([1, None])  # type: ignore[list-item]
    assert "explain.py" in told(caught.value)


def test_causes_are_shortened_too() -> None:
    def mine() -> None:
        from hora.workloads.options import WorkloadOptions

        try:
            WorkloadOptions.of({"batch": 0})
        except UsageError as error:
            raise RuntimeError("mine") from error

    with pytest.raises(RuntimeError) as caught:
        mine()
    text = told(caught.value)
    assert "--batch 0" in text and "options.py" not in text and text.count("in mine") == 2
    assert "options.py" in told(caught.value, full=True)


def test_the_mark_is_a_space() -> None:
    assert final("a\nb\n") == "a \nb\n"
