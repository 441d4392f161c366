"""Finding the hosts of an elastic job: a fixed list, or one that is queried regularly: a script, Slurm, Ray.

The script prints a host a line, ``name`` or ``name:slots``. The first time it must work. Later a failure is reported
once, and the hosts stay what they were: who cannot answer for a moment must not end a training.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from hora.config import env
from hora.config.nodelist import expand
from hora.errors import EnvironmentUnfit, UsageError
from hora.launch.planning.hosts import parse_hosts
from hora.text import size_text

__all__ = ["Asked", "FixedHosts", "HostDiscovery", "HostScript", "SlurmNodes"]

_EVERY_S = 1.0
_TIMEOUT_S = 10.0
_MOST_BYTES = 1 << 20  # of an answer
_LAST_BYTES = 1 << 12  # of what it says besides
_LOOK_S = 0.1  # between two looks whether a command has ended whose output somebody else holds open
_SHOWN = 80  # characters of what it printed


class HostDiscovery(Protocol):
    """Where a job may run now."""

    def begin(self, on_change: Callable[[], None]) -> None:
        """Look for the first time, raising EnvironmentUnfit if that fails; ``on_change`` is called from any thread."""

    def found(self) -> Mapping[str, int]:
        """Hosts and their slots, as last seen."""

    def complaint(self) -> str:
        """A message about what went wrong since the last call; empty if nothing did."""

    def close(self) -> None: ...


class FixedHosts:
    """The same hosts for as long as the job runs.

    >>> FixedHosts({"h1": 2}).found()
    {'h1': 2}
    """

    def __init__(self, hosts: Mapping[str, int]) -> None:
        self._hosts = dict(hosts)

    def begin(self, on_change: Callable[[], None]) -> None:
        pass

    def found(self) -> Mapping[str, int]:
        return self._hosts

    def complaint(self) -> str:
        return ""

    def close(self) -> None:
        pass


class Asked:
    """Asks ``ask``, which raises EnvironmentUnfit if it gets no answer, in a thread of its own. ``first`` is what is
    known before, without asking."""

    def __init__(
        self, ask: Callable[[], dict[str, int]], *, every_s: float = _EVERY_S, first: Mapping[str, int] | None = None
    ) -> None:
        self._ask, self._every_s, self._first = ask, every_s, first
        self._hosts: dict[str, int] = {}
        self._complaint, self._told = "", ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hora-discovery", daemon=True)
        self._on_change: Callable[[], None] = lambda: None

    def begin(self, on_change: Callable[[], None]) -> None:
        self._hosts, self._on_change = dict(self._first) if self._first is not None else self._ask(), on_change
        self._thread.start()

    def found(self) -> Mapping[str, int]:
        return self._hosts

    def complaint(self) -> str:
        text, self._complaint = self._complaint, ""
        return text

    def close(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(_TIMEOUT_S + 1.0)

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            try:
                found = self._ask()
            except EnvironmentUnfit as error:
                if str(error) != self._told:
                    self._told = self._complaint = str(error)
                    self._on_change()
                continue
            self._told = ""
            if found != self._hosts:
                self._hosts = found
                self._on_change()


class HostScript:
    """Asks a script. ``slots`` is for hosts that it names without a number."""

    def __init__(self, command: str, slots: int = 1, *, timeout_s: float = _TIMEOUT_S) -> None:
        self._command, self._slots, self._timeout_s = command, slots, timeout_s

    def __call__(self) -> dict[str, int]:
        try:
            words = shlex.split(self._command)
        except ValueError as error:
            raise self._unfit(f"cannot be read: {error}") from None
        if not words:
            raise EnvironmentUnfit("--host-discovery-script is empty. Give a command that prints a host a line.")
        try:
            said = _output_of(words, self._timeout_s)
        except EnvironmentUnfit as error:
            raise self._unfit(str(error)) from None
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        hosts: dict[str, int] = {}
        for line in lines:
            try:
                for host in parse_hosts(line if ":" in line else f"{line}:{self._slots}"):
                    hosts[host.name] = hosts.get(host.name, 0) + host.slots
            except UsageError:
                raise self._unfit(f"printed a line that is no list of hosts: {_shown(line)}") from None
        if not hosts:
            raise self._unfit("named no host")
        return hosts

    def _unfit(self, what: str) -> EnvironmentUnfit:
        return EnvironmentUnfit(
            f"--host-discovery-script {self._command!r} {what}. Without it nobody knows where workers may run. "
            "It must print a host a line, like 'h1:4', with at least one slot, within a few seconds, and exit with 0."
        )


class SlurmNodes:
    """Asks Slurm for the nodes that a job has now: one that failed is taken from it (``--no-kill``), and it may be
    given more. ``slots`` has what was known of them at first; others get as many as the first."""

    def __init__(self, job: str, slots: Mapping[str, int], others: int | None = None) -> None:
        self._job, self._slots = job, dict(slots)
        self._others = others or next(iter(slots.values()), 1)

    def __call__(self) -> dict[str, int]:
        words = ["squeue", "--noheader", f"--jobs={self._job}", "--format=%N"]
        try:
            names = expand("".join(_output_of(words, _TIMEOUT_S).split()))
        except (EnvironmentUnfit, UsageError) as error:
            raise EnvironmentUnfit(f"Slurm does not say which nodes job {self._job} has: 'squeue' {error}") from None
        return {name: self._slots.get(name, self._others) for name in names}


def _output_of(words: list[str], timeout_s: float) -> str:
    """What a command prints. Raises EnvironmentUnfit with the end of a sentence about it."""
    try:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0,
            env={name: value for name, value in env.environ().items() if name != "LD_PRELOAD"},
        )  # fmt: skip
    except OSError as error:
        raise EnvironmentUnfit(f"could not be started: {error.strerror}") from None
    try:
        said, errors = _answer(process, timeout_s)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # and what it has left running
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
    if process.returncode:
        last = (errors.decode(errors="replace").strip().splitlines() or ["nothing"])[-1]
        raise EnvironmentUnfit(f"ended with exit code {process.returncode}, saying: {_shown(last)}")
    return said.decode(errors="replace")


def _answer(process: subprocess.Popen[bytes], timeout_s: float) -> tuple[bytes, bytes]:
    """What the command printed until it ended, and the end of what it said besides. It is not reaped, so that its
    process group is its own until whoever asked has ended that."""
    deadline = time.monotonic() + timeout_s
    said, errors = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector:
        for pipe, taken in ((process.stdout, said), (process.stderr, errors)):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, selectors.EVENT_READ, taken)
        while True:
            # Looked at first: what it printed is in the pipes by then, whoever else has them open.
            ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
            ready = selector.select(0.0 if ended else _LOOK_S if len(selector.get_map()) else _LOOK_S / 10)
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                key.data.extend(data)
                if not data:
                    selector.unregister(key.fileobj)
            del errors[:-_LAST_BYTES]
            if len(said) > _MOST_BYTES:
                raise EnvironmentUnfit(f"printed more than {size_text(_MOST_BYTES)}")
            if ended and not ready:
                return bytes(said), bytes(errors)
            if time.monotonic() > deadline:
                raise EnvironmentUnfit(f"did not answer within {timeout_s:g} s")


def _shown(text: str) -> str:
    """What somebody printed, quoted, and not longer than a line of a terminal.

    >>> _shown("h1:x"), len(_shown("x" * 1000))
    ("'h1:x'", 81)
    """
    quoted = repr(text)
    return quoted if len(quoted) <= _SHOWN else f"{quoted[:_SHOWN]}…"
