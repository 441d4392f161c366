"""A running elastic job of a test: what it prints, as it comes, and its workers by number."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time

from tests.launch.jobs import SOURCE, clean_environment
from tests.prompt import PROMPT_S

__all__ = ["Job"]

ROOT = SOURCE.parent


class Job:
    """A running elastic job: its lines as they come, and its workers by number."""

    def __init__(self, command: list[str], **environment: str) -> None:
        variables = {**clean_environment(**environment), "PYTHONPATH": f"{SOURCE}{os.pathsep}{ROOT}"}
        self.process = subprocess.Popen(
            command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0
        )
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def until(self, pattern: str, count: int = 1, deadline_s: float = 6 * PROMPT_S) -> list[re.Match[str]]:
        """Wait until so many lines match."""
        deadline = time.monotonic() + deadline_s
        with self._news:
            while len(found := [m for line in self.lines if (m := re.search(pattern, line))]) < count:
                left = deadline - time.monotonic()
                assert left > 0 and not self._ended, f"no {count} lines with {pattern!r} in:\n{self.text}"
                self._news.wait(left)
            return found

    def pid(self, worker: int) -> int:
        return int(self.until(rf"up (\d+) worker {worker}\b")[0][1])

    def kill(self, worker: int, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid(worker), number)

    def wait(self, deadline_s: float = 6 * PROMPT_S) -> int:
        try:
            code = self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {deadline_s:g} s:\n{self.text}") from None
        self._reader.join(PROMPT_S)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(PROMPT_S)
        self._reader.join(PROMPT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
