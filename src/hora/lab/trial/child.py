"""A child process that is watched, and of which nothing stays.

It leads a session of its own, so that Ctrl-C in a terminal is ours to pass on, and a guardian ends it should this
process be killed. Its output goes to a file.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from hora.config import env
from hora.doctor.machine import Machine, oom_kills
from hora.lab.trial.usage import Usage
from hora.launch.host.ending import out_of_memory_kills
from hora.launch.host.local import Guardian

__all__ = ["Child"]

_LOOK_S = 1.0  # a look takes some milliseconds from those who are measured
_GRACE_S = 10.0  # from SIGTERM to SIGKILL: it may be saving
_GONE_S = 5.0  # for the launcher's guardian to end what a killed launcher leaves


class Child:
    """A command, started when the block begins and ended, if it has not, when the block ends."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._command, self._environment, self._log = command, environment, log
        self._began = self._ended = 0.0
        self.started = 0.0  # as time.time() counts
        self.oom_kills = 0  # how often the kernel killed somebody because memory ran out meanwhile

    def __enter__(self) -> Child:
        self._oom_kills_before = _oom_kills()
        self._guardian = Guardian(os.urandom(8).hex())
        try:
            with open(self._log, "wb") as log:
                self._popen = subprocess.Popen(
                    self._command,
                    env=dict(self._environment),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self._began, self.started = time.monotonic(), time.time()
            self._guardian.watch(self._popen.pid)
            self.usage = Usage(self._popen.pid, self._log.with_name("gpu.txt"))
        except BaseException:
            self._guardian.done()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.end()
        finally:
            self.usage.close()
            self._guardian.done()

    @property
    def seconds(self) -> float:
        """How long it has run."""
        return (self._ended or time.monotonic()) - self._began

    def wait(self, timeout_s: float, look: Callable[[float], None] | None = None) -> int | None:
        """Watch it until it ends; its exit code, or None: the time was up, and it was ended. ``look`` watches too."""
        deadline = self._began + timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            self.usage.look()
            if look is not None:
                look(self.seconds)
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._popen.wait(min(_LOOK_S, left_s))
                self._note_end()
                return code
        self.end()
        return None

    def end(self) -> None:
        """End it and all that it has started: SIGTERM, and after some seconds SIGKILL, at once if interrupted."""
        if self._popen.poll() is None:
            self.usage.look()
            try:
                self._popen.terminate()
                self._popen.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                pass
            finally:
                if self._popen.poll() is None:
                    os.killpg(self._popen.pid, signal.SIGKILL)
                    self._popen.wait()
        self._note_end()
        _, alive = psutil.wait_procs(self.usage.processes, _GONE_S)
        for process in alive:
            with contextlib.suppress(psutil.Error):
                process.kill()  # psutil looks first whether the number is another's by now

    def _note_end(self) -> None:
        if not self._ended:
            self._ended = time.monotonic()
            self.oom_kills = _oom_kills() - self._oom_kills_before


def _oom_kills() -> int:
    return (out_of_memory_kills() or 0) + oom_kills(Machine(env.environ()))
