"""A copy of the checkout in which bugs are planted, one at a time, and tests are run. The checkout itself is never
touched, and nothing that a mutant has started outlives it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any, NamedTuple

from tests.native.simulator import NotBuilt, build_core
from tests.native.simulator import build as build_simulator

__all__ = ["Ran", "Tree"]

_PARTS = ("src", "native", "tests", "docs", "examples", "bench", "pyproject.toml", "setup.py", "Makefile", "README.md")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.egg-info", ".pytest_cache", "mutants.jsonl")
_CORE = "src/hora/transport/_core.so"
_MARK = "HORA_MUTANT"


class Ran(NamedTuple):
    """``red``: a test failed; ``late``: there was no end. ``by`` is the first test that failed, or what was run.
    ``test`` is how to run that test alone, if it is one."""

    red: bool
    late: bool
    by: str
    seconds: float
    test: str = ""
    said: str = ""


class Tree:
    """The copy; ``root`` is where it is."""

    def __init__(self, checkout: Path, root: Path) -> None:
        self.root = root
        self._mark = f"{_MARK}={uuid.uuid4().hex}"
        self._stamp = 1_000_000_000
        self._objects = root / "objects"
        for name in _PARTS:
            here = checkout / name
            if here.is_dir():
                shutil.copytree(here, root / name, ignore=_LEFT_OUT, symlinks=True)
            elif here.exists():
                shutil.copy2(here, root / name)

    def put(self, file: str, text: str) -> None:
        """Write a file, with a time of its own: Python recognises what it has compiled by time and size."""
        self._stamp += 10
        path = self.root / file
        path.write_text(text)
        os.utime(path, (self._stamp, self._stamp))

    def build(self) -> bytes | None:
        """Compile the C core, and the simulator with it; the core's bytes, or None if it does not compile."""
        core, simulator = self.root / _CORE, self.root / "native" / "sim" / "simulate"
        core.unlink(missing_ok=True)
        simulator.unlink(missing_ok=True)
        try:
            build_core(self.root / "native", core, self._objects)
        except NotBuilt:
            return None
        with contextlib.suppress(NotBuilt):  # then tests alone have to find the bug
            build_simulator(self.root / "native", simulator, self._objects)
        return core.read_bytes()

    def run(self, stage: list[str], bound_s: float, **more: str) -> Ran:
        """Run a stage of ``reach``: pytest to its first failure, or a command of ours."""
        pytest = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=line", "-p", "no:cacheprovider", "-m", "not long"]
        command = [str(self.root / stage[0]), *stage[1:]] if "/sim/" in stage[0] else [*pytest, *stage]
        began = time.monotonic()
        log = self.root / "output.txt"
        with log.open("w") as output:
            process = self._start(command, stdout=output, stderr=subprocess.STDOUT, **more)
            try:
                code: int | None = process.wait(bound_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                self._end(process)
        said = log.read_text(errors="replace")
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
        ended = (
            "no end" if code is None else f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        )
        by = failed[1] if failed else f"{stage[0]}: {ended}"
        test = failed[1] if failed and failed[1].count("[") == failed[1].count("]") else by.partition("[")[0]
        return Ran(code != 0, code is None, by, time.monotonic() - began, test if failed else "", said)

    def calls(self, file: str) -> list[dict[str, Any]]:
        """What each test of a file calls of ours, and how long it takes; see ``calls.py``."""
        noted = self.root / "calls.jsonl"
        noted.write_text("")
        self.run([file, "-p", "tests.mutants.calls", "--maxfail=99"], 600, HORA_MUTANT_CALLS=str(noted))
        return [json.loads(line) for line in noted.read_text().splitlines()]

    def _start(self, command: list[str], *, stdout: object, stderr: object, **more: str) -> subprocess.Popen[bytes]:
        name, _, value = self._mark.partition("=")
        return subprocess.Popen(
            command, cwd=self.root, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True,  # type: ignore[call-overload]
            env={**os.environ, "PYTHONPATH": f"{self.root / 'src'}:{self.root}", name: value, **more},
        )  # fmt: skip

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """End it and all it has started, wherever that has gone: it carries our mark."""
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self._mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                    os.kill(int(folder.name), signal.SIGKILL)
