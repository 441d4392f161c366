"""Jobs of Keras's workloads: all bodies of a file in one job for a backend and a number of workers.

Keras must not come into the process that runs all other tests, so bodies are in files of their own (``bodies*.py``),
and their names are read, not imported. A body is a function ``(digits, folder)`` decorated with ``@on(1)``, ``@on(2)``
or ``@on(1, 2)``: with how many workers it is run.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.keras.surroundings import ROOT
from tests.keras.surroundings import surroundings as around_keras
from tests.launch.jobs import run_hora

TIMEOUT_S = 400.0  # on a busy machine; a quiet one needs 40, of JAX 150
BACKENDS = ("tensorflow", "torch", "jax")


def cases(source: Path) -> list[Any]:
    """Parameters (backend, workers, body) for all bodies of a file. Other backends than TensorFlow, and two workers,
    are tried where there is time."""
    found = []
    for backend in BACKENDS:
        for workers in (1, 2):
            often = backend == "tensorflow" and workers == 1
            marks = [pytest.mark.slow if often else pytest.mark.long, pytest.mark.timeout(TIMEOUT_S + 30)]
            for node in ast.parse(source.read_text()).body:
                if isinstance(node, ast.FunctionDef) and workers in _numbers(node):
                    name = f"{backend}-{workers}-{node.name}"
                    found.append(pytest.param(backend, workers, node.name, id=name, marks=marks))
    return found


def _numbers(node: ast.FunctionDef) -> list[int]:
    return [
        ast.literal_eval(argument)
        for call in node.decorator_list
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "on"
        for argument in call.args
    ]


def surroundings(backend: str) -> dict[str, str]:
    """The variables of a process that trains with Keras on that backend."""
    return {**around_keras(backend), "HORA_START_TIMEOUT": "90", "HORA_NONFINITE": "stop"}


class Jobs:
    """The jobs of a file of bodies, each run when it is first asked for, and what went wrong in them."""

    def __init__(self, module: str, data: Path, folder: Path, timeout_s: float = TIMEOUT_S) -> None:
        self._module, self._data, self._folder, self._timeout_s = module, data, folder, timeout_s
        self._said: dict[tuple[str, int], str] = {}

    def folder(self, backend: str, workers: int) -> Path:
        """Where the job has left its files."""
        folder = self._folder / f"{backend}-{workers}"
        if (backend, workers) not in self._said:
            self._said[backend, workers] = self._run(backend, workers, folder)
        return folder

    def check(self, backend: str, workers: int, body: str) -> None:
        """Fail as the body did."""
        folder = self.folder(backend, workers)
        for rank in range(workers):
            file = folder / f"rank-{rank}.json"
            assert file.exists(), f"rank {rank} did not report.\n{self._said[backend, workers]}"
            went_wrong = json.loads(file.read_text()).get(body, "it did not come to that")
            said = "" if "Traceback" in went_wrong else self._said[backend, workers]
            assert not went_wrong, f"rank {rank}: {went_wrong}\n{said}"

    def _run(self, backend: str, workers: int, folder: Path) -> str:
        for module in ("keras", backend):
            if importlib.util.find_spec(module) is None:
                pytest.skip(f"{module} is not installed")
        folder.mkdir(parents=True)
        try:
            done = run_hora(
                "run", "-np", str(workers), sys.executable, "-m", self._module, self._data, folder,
                timeout_s=self._timeout_s, cwd=ROOT, **surroundings(backend),
            )  # fmt: skip
        except subprocess.TimeoutExpired as expired:
            return f"no end after {self._timeout_s} s: {expired.output!r}"
        return done.stdout + done.stderr
