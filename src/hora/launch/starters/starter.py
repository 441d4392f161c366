"""Starting agents: what every way to reach other hosts (ssh, srun, Ray) has in common.

A starter makes *carriers*: whatever runs on this machine for as long as an agent runs elsewhere, such as an ssh client.
If a carrier ends before its agents have connected, the user is shown what it printed.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

import hora
from hora.config import env
from hora.errors import EnvironmentUnfit
from hora.launch.host.local import wait_handle
from hora.launch.host.orders import AGENT_SAYS

__all__ = ["AgentCarrier", "Command", "Starter", "agent_command", "explain_end", "shown"]

_LONGEST_COMPLAINT = 6  # lines
# All hosts wait for it: msgspec does without typing_extensions, which takes as long to import as all the rest, -m would
# import more, and without site (-S), which reads every .pth file, Python is there in half the time. Where the same
# interpreter finds Hora elsewhere, site is asked after all. Nothing that is imported is garbage.
_AGENT = (
    'import gc, os, sys; gc.disable(); sys.modules["typing_extensions"] = None; sys.path += {path!r}; '
    'os.path.isdir(sys.path[-2] + "/hora") or __import__("site").main(); '
    "from hora.launch.host.agent import live; gc.enable(); live()"
)


class AgentCarrier(Protocol):
    """What carries the agents of some hosts."""

    hosts: tuple[str, ...]
    handle: int | None  # readable when it has ended

    def feed(self, data: bytes) -> None:
        """Give its agents their standard input. What carries them has begun to start meanwhile."""

    def poll(self) -> int | None:
        """Its exit code once it has ended."""

    def said(self) -> str:
        """What it, or its agents, have complained of."""

    def leave(self) -> None:
        """Its agents have ended: see it end."""

    def stop(self) -> None:
        """End it, here and now."""


class Starter(Protocol):
    """One way to start an agent on each of several hosts."""

    name: str

    def environment(self, environment: Mapping[str, str]) -> Mapping[str, str]:
        """What of the launcher's environment the workers get there."""

    def commands(self, hosts: Sequence[str]) -> list[tuple[str, str]]:
        """Hosts and the command that reaches them, for people to read."""

    def start(self, hosts: Sequence[str]) -> list[AgentCarrier]:
        """Begin to start agents on all of them, at once. Raises EnvironmentUnfit if that is hopeless."""

    def explain(self, host: str, code: int, said: str) -> str:
        """Why the carrier of this host ended before its agent had connected."""


def agent_command() -> list[str]:
    """The agent, with this interpreter; it must exist under the same name on every host."""
    places = [str(Path(module.__file__ or "").parents[1]) for module in (hora, msgspec)]
    return [sys.executable, "-S", "-P", "-c", _AGENT.format(path=places)]


class Command:
    """A carrier that is a command on this machine."""

    def __init__(self, hosts: Sequence[str], command: Sequence[str], *, leave_s: float = 0.0) -> None:
        self.hosts, self._leave_s = tuple(hosts), leave_s
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=self._errors,
                stderr=self._errors,
                process_group=0,  # Ctrl-C is passed on to the workers; what carries them must survive it
                env={name: value for name, value in env.environ().items() if name != "HORA_JOB"},
            )
        except OSError as error:
            self._errors.close()
            raise EnvironmentUnfit(
                f"{command[0]!r} could not be started: {error.strerror}. It is needed to reach {', '.join(hosts)}. "
                "Install it, or choose another way with --on."
            ) from error
        self.handle = wait_handle(self._popen.pid)

    def feed(self, data: bytes) -> None:
        threading.Thread(target=self._write, args=(data,), daemon=True).start()  # it may be more than a pipe holds

    def _write(self, data: bytes) -> None:
        assert self._popen.stdin is not None
        with contextlib.suppress(OSError):  # it has ended, and will say why
            self._popen.stdin.write(data)
        with contextlib.suppress(OSError):
            self._popen.stdin.close()

    def poll(self) -> int | None:
        return self._popen.poll()

    def said(self) -> str:
        size = os.fstat(self._errors.fileno()).st_size
        return os.pread(self._errors.fileno(), 1 << 16, max(0, size - (1 << 16))).decode("utf-8", "replace")

    def leave(self) -> None:
        self._await(self._leave_s)
        self._popen.kill()  # if it has not left by now; nothing depends on it any more
        self.stop()

    def _await(self, timeout_s: float) -> None:
        if self._popen.poll() is None and self.handle is not None:
            select.select([self.handle], [], [], timeout_s)

    def stop(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._popen.poll() is None:
                os.killpg(self._popen.pid, number)
                self._await(1.0)
        self._popen.wait()
        assert self._popen.stdin is not None
        with contextlib.suppress(OSError):
            self._popen.stdin.close()
        self._errors.close()
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None


def explain_end(host: str, carrier: str, code: int, said: str) -> str:
    """Why an agent did not come to be, from what was left of it. What every carrier has in common.

    >>> explain_end("h2", "ssh", 127, "sh: 1: /opt/python: not found")
    'h2: ssh said: sh: 1: /opt/python: not found. ... does not exist there. Install the same environment on every host.'
    """
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    agents = [line.removeprefix(AGENT_SAYS) for line in lines if line.startswith(AGENT_SAYS)]
    if agents:
        return "\n".join(agents)
    raised = any(line.startswith("Traceback") for line in lines)  # then the last line says it all
    complaint = "; ".join(lines[-1 if raised else -_LONGEST_COMPLAINT :])
    text = f"{host}: {carrier} said: {complaint or 'nothing'}"
    text = text if text.endswith(".") else text + "."
    if re.search(r"No module named '?(hora|msgspec)\b", said):
        return f"{text} Hora is not installed for {sys.executable} there. Install the same environment on every host."
    if code in (126, 127) or re.search(f"{re.escape(sys.executable)}.*(No such file|not found)", said):
        return f"{text} {sys.executable} does not exist there. Install the same environment on every host."
    return text if complaint else f"{host}: {carrier} ended with exit code {code} and printed nothing."


def shown(command: Sequence[str]) -> str:
    """A command for people to read."""
    return shlex.join(command)
