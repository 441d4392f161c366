"""How checks look at the machine. They read files, start commands and ask for disks and interfaces only through it, so
that tests can show them another machine: another root directory, another path, other answers.

Commands are started without a terminal, in a group of their own, and do not outlive their deadline. Of the limits that
a container or a batch system has set through control groups, version 1 and 2, the one that counts is the tightest on
the way from this process's group to the root, so all of them are read.
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

__all__ = ["CgroupLimits", "CommandResult", "Disk", "Interface", "Machine", "cgroup_limits", "oom_kills"]

# What a launcher around the doctor has set must not reach the jobs that the doctor starts.
_OF_A_JOB = re.compile(r"(HORA|HOROVOD)_(RANK|SIZE|LOCAL_|CROSS_|HOSTNAME|HOMOGENEOUS|JOB|HUB_|SECRET|TRANSPORT)")
_OF_OTHERS = ("OMPI_COMM_", "PMI_", "PMIX_", "PRTE_", "MPI_LOCAL", "TORCHELASTIC_", "LD_PRELOAD")


class CommandResult(NamedTuple):
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
        """How it ended, in words.

        >>> CommandResult(-11, "", "", 0.1).ended, CommandResult(None, "", "", 20.0).ended
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
    """A network interface; ``speed_mbit`` is 0 if it is unknown."""

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
    measured: dict[str, dict[int, float]] = field(default_factory=dict)  # seconds by transport and size
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
    ) -> CommandResult:
        """Run a command to its end or its deadline, with ``text`` as its input; nothing of its group is left."""
        started = time.monotonic()
        if self._closed:  # the doctor has continued without whoever asks
            return CommandResult(None, "", "", 0.0)
        try:
            process = subprocess.Popen(
                command, env=dict(self.environ if env is None else env), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            return CommandResult(127, "", f"{command[0]}: {error.strerror}", time.monotonic() - started)
        with self._lock:
            self._running.add(process.pid)
        try:
            out, err = process.communicate(text, timeout=deadline_s)
            return CommandResult(process.returncode, out, err, time.monotonic() - started)
        except subprocess.TimeoutExpired:
            out, err = _ended(process)
            return CommandResult(None, out, err, deadline_s)
        finally:
            with self._lock:
                self._running.discard(process.pid)
            _kill(process.pid)
            process.poll()

    def run_python(self, program: str, deadline_s: float, **more: str) -> CommandResult:
        """Run a few lines of Python with this interpreter."""
        return self.run([self.python, "-c", program], deadline_s, env=self.job_environment(**more))

    def close(self) -> None:
        """End commands of checks that were given up; none is started any more."""
        with self._lock:
            self._closed = True
            for pid in self._running:
                _kill(pid)


def _ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    """End a group: asked first, because a launcher has workers to end, then by force. Returns its output."""
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


# ---- control groups ----

_MOUNT = "/sys/fs/cgroup"
_NONE = 1 << 60  # version 1 writes "no limit" as a huge number of pages


class CgroupLimits(NamedTuple):
    """None: no limit. ``cpus``: the quota in cores. ``pids_left``: how many more processes and threads there may be."""

    version: str = ""
    memory_bytes: int | None = None
    cpus: float | None = None
    pids_left: int | None = None


def cgroup_limits(machine: Machine) -> CgroupLimits:
    """What this process's groups allow."""
    memory: list[int] = []
    cpus: list[float] = []
    pids: list[int] = []
    versions: set[str] = set()
    for version, controllers, folder in _folders(machine):
        versions.add(version)
        if not controllers or "memory" in controllers:
            name = "memory.max" if version == "v2" else "memory.limit_in_bytes"
            memory += [value for value in [_number(machine, f"{folder}/{name}")] if value is not None]
        if not controllers or "cpu" in controllers:
            cpus += [quota for quota in [_quota(machine, version, folder)] if quota is not None]
        if not controllers or "pids" in controllers:
            most, now = _number(machine, f"{folder}/pids.max"), _number(machine, f"{folder}/pids.current")
            pids += [most - (now or 0)] if most is not None else []
    return CgroupLimits(
        "+".join(sorted(versions)), min(memory, default=None), min(cpus, default=None), min(pids, default=None)
    )


def oom_kills(machine: Machine) -> int:
    """How often a process of this process's own group was killed because memory ran out; 0 if that is unknown."""
    for version, controllers, folder in _folders(machine):
        if version == "v2" or "memory" in controllers:
            text = machine.read(f"{folder}/{'memory.events' if version == 'v2' else 'memory.oom_control'}") or ""
            for line in text.splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    return int(count)
    return 0


def _folders(machine: Machine) -> Iterator[tuple[str, frozenset[str], str]]:
    """(version, controllers, directory) of every group this process is in and of all above it."""
    for line in (machine.read("/proc/self/cgroup") or "").splitlines():
        hierarchy, names, path = [*line.split(":", 2), "", ""][:3]
        version = "v2" if hierarchy == "0" else "v1"
        if version == "v2":  # mounted beside version 1 it is called unified
            base = _MOUNT if "cgroup.controllers" in machine.names(_MOUNT) else f"{_MOUNT}/unified"
        else:
            base = f"{_MOUNT}/{names}"
        if not machine.names(base):
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            folder = "/".join([base, *parts[:depth]])
            if machine.names(folder):
                yield version, frozenset(names.split(",")) - {""}, folder


def _number(machine: Machine, path: str) -> int | None:
    text = (machine.read(path) or "").strip()
    return int(text) if text.isdigit() and int(text) < _NONE else None


def _quota(machine: Machine, version: str, folder: str) -> float | None:
    if version == "v2":
        words = (machine.read(f"{folder}/cpu.max") or "").split()
        quota, period = words if len(words) == 2 else ("max", "1")
    else:
        quota = machine.read(f"{folder}/cpu.cfs_quota_us") or "-1"
        period = machine.read(f"{folder}/cpu.cfs_period_us") or "100000"
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None
