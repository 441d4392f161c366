"""How checks look at the machine. They read files, start commands and ask for disks and interfaces only through it, so
that tests can show them another machine: another root directory, another path, other answers.

Commands are started without a terminal, in a group of their own, and do not outlive their deadline.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

__all__ = ["Disk", "Interface", "Machine", "Ran", "duration", "size"]

# What a launcher around the doctor has set must not reach the jobs that the doctor starts.
_OF_A_JOB = re.compile(r"(HORA|HOROVOD)_(RANK|SIZE|LOCAL_|CROSS_|HOSTNAME|HOMOGENEOUS|JOB|HUB_|SECRET|TRANSPORT)")
_OF_OTHERS = ("OMPI_COMM_", "PMI_", "PMIX_", "PRTE_", "MPI_LOCAL", "TORCHELASTIC_", "LD_PRELOAD")


class Ran(NamedTuple):
    """How a command went. ``code`` is None if it was still running at its deadline or could not be started."""

    code: int | None
    out: str
    err: str
    seconds: float

    @property
    def last(self) -> str:
        """The last thing it had to say, on one line: errors first, and how it ended if it said nothing."""
        lines = [line.strip() for text in (self.err, self.out) for line in text.splitlines()[::-1] if line.strip()]
        return lines[0] if lines else self.ended

    @property
    def ended(self) -> str:
        """In words.

        >>> Ran(-11, "", "", 0.1).ended, Ran(None, "", "", 20.0).ended
        ('ended by SIGSEGV', 'no answer within 20 s')
        """
        if self.code is None:
            return f"no answer within {self.seconds:.0f} s"
        if self.code < 0:
            with contextlib.suppress(ValueError):
                return f"ended by {signal.Signals(-self.code).name}"
        return f"exit code {self.code}"


class Disk(NamedTuple):
    """Room on a file system."""

    total: int
    free: int


class Interface(NamedTuple):
    """A network interface; ``speed_mbit`` is 0 where nobody knows."""

    name: str
    addresses: tuple[str, ...]
    up: bool
    speed_mbit: int
    mtu: int


@dataclass
class Machine:
    """This machine, or the one a test makes up. ``np`` is how many workers a job would have here."""

    environ: Mapping[str, str]
    np: int = 2
    hosts: tuple[str, ...] = ()
    quick: bool = False
    root: Path = Path("/")
    python: str = sys.executable
    _running: set[int] = field(default_factory=set)
    _closed: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self, path: str) -> str | None:
        """A file's text without the last newline, or None if it cannot be read."""
        try:
            return (self.root / path.lstrip("/")).read_text(errors="replace").strip("\n")
        except OSError:
            return None

    def names(self, folder: str) -> list[str]:
        """The names in a directory, sorted; none if it cannot be read."""
        try:
            return sorted(os.listdir(self.root / folder.lstrip("/")))
        except OSError:
            return []

    def link(self, path: str) -> str:
        """Where a symbolic link leads, or nothing."""
        try:
            return os.readlink(self.root / path.lstrip("/"))
        except OSError:
            return ""

    def disk(self, path: str) -> Disk | None:
        try:
            found = os.statvfs(self.root / path.lstrip("/"))
        except OSError:
            return None
        return Disk(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)

    def interfaces(self) -> Sequence[Interface]:
        import psutil

        stats = psutil.net_if_stats()
        return [
            Interface(
                name,
                tuple(entry.address for entry in entries if entry.family.name in ("AF_INET", "AF_INET6")),
                name in stats and stats[name].isup,
                stats[name].speed % 65535 if name in stats else 0,
                stats[name].mtu if name in stats else 0,
            )
            for name, entries in psutil.net_if_addrs().items()
        ]

    def which(self, program: str) -> str | None:
        """A program: beside this Python first, where virtual environments have it, then on the path."""
        beside = Path(self.python).with_name(program)
        if beside.is_file() and os.access(beside, os.X_OK):
            return str(beside)
        return shutil.which(program, path=self.environ.get("PATH", os.defpath))

    def job_environment(self, **more: str) -> dict[str, str]:
        """The environment for a job of the doctor's own: without the place that this process may have in another."""
        kept = {
            name: value
            for name, value in self.environ.items()
            if not _OF_A_JOB.match(name) and not name.startswith(_OF_OTHERS)
        }
        return {**kept, **more}

    def run(
        self, command: Sequence[str], deadline_s: float, *, env: Mapping[str, str] | None = None, text: str = ""
    ) -> Ran:
        """Run a command to its end or its deadline, with ``text`` as its input; nothing of its group is left."""
        started = time.monotonic()
        if self._closed:  # the doctor has gone on without whoever asks
            return Ran(None, "", "", 0.0)
        try:
            process = subprocess.Popen(
                command, env=dict(self.environ if env is None else env), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            return Ran(127, "", f"{command[0]}: {error.strerror}", time.monotonic() - started)
        with self._lock:
            self._running.add(process.pid)
        try:
            out, err = process.communicate(text, timeout=deadline_s)
            return Ran(process.returncode, out, err, time.monotonic() - started)
        except subprocess.TimeoutExpired:
            out, err = _ended(process)
            return Ran(None, out, err, deadline_s)
        finally:
            with self._lock:
                self._running.discard(process.pid)
            _kill(process.pid)
            process.poll()

    def run_python(self, program: str, deadline_s: float, **more: str) -> Ran:
        """Run a few lines of Python with this interpreter."""
        return self.run([self.python, "-c", program], deadline_s, env=self.job_environment(**more))

    def close(self) -> None:
        """End commands of checks that were given up; none is started any more."""
        with self._lock:
            self._closed = True
            for pid in self._running:
                _kill(pid)


def _ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    """End a group: asked first, because a launcher has workers to end, then by force. Returns what it had said."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        return process.communicate(timeout=2.0)
    except subprocess.TimeoutExpired:
        _kill(process.pid)
    try:
        return process.communicate(timeout=2.0)
    except subprocess.TimeoutExpired:  # stuck in the kernel, or somebody else holds its pipes
        return "", ""


def _kill(group: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(group, signal.SIGKILL)


def size(count: float) -> str:
    """Bytes as people read them.

    >>> size(4), size(65536), size(24 * 2**30)
    ('4 B', '64 KB', '24 GB')
    """
    unit = "B"
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if count < 1024 or unit == "TB":
            break
        count /= 1024
    return f"{count:.3g} {unit}" if count < 1000 else f"{count:.0f} {unit}"


def duration(seconds: float) -> str:
    """A time as people read it.

    >>> duration(22e-6), duration(0.0021), duration(3.21)
    ('22 µs', '2.1 ms', '3.2 s')
    """
    for unit, scale in (("µs", 1e6), ("ms", 1e3)):
        if seconds * scale < 1000:
            value = seconds * scale
            return f"{value:.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}"
    return f"{seconds:.1f} s"
