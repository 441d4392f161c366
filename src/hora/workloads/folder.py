"""What a run says about itself in its folder: ``run.json``, written by rank 0 when it begins and again when it ends.

The file is always whole: it is written aside and renamed. A run that was refused before it began (wrong options, no
data, a folder that holds another run) writes nothing. One that is killed leaves "running" behind; that its process is
gone tells what happened. Nothing here imports a framework.
"""

from __future__ import annotations

import os
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from hora import __version__
from hora.config.settings import PREEMPTED_EXIT_CODE
from hora.errors import BadData, HoraError, UsageError
from hora.files import from_json, json_text, replacing
from hora.wire.messages import Peer

__all__ = [
    "FILE", "Generation", "RunFile", "RunNote", "State", "cpu_model", "earlier", "ending", "environment", "now", "read",
    "read_json", "write_json",
]  # fmt: skip

T = TypeVar("T")

FILE = "run.json"
State = Literal["running", "done", "failed", "interrupted"]

_PACKAGES = ("torch", "numpy", "tensorflow", "tensorflow-cpu", "keras", "jax", "mpi4py")
_GIT_S = 2.0


class Generation(msgspec.Struct, kw_only=True):
    """The workers of an elastic job from one change of them to the next."""

    number: int
    began: str  # ISO, UTC
    step: int  # steps that were done before
    members: list[tuple[int, str, int]]  # worker, host and process id, by rank
    came: list[int] = []  # workers, of those that were not in the one before
    left: list[int] = []
    without_steps_s: float | None = None  # from the last step before to the first one in it, if that is known


class RunFile(msgspec.Struct, kw_only=True):
    """What is in ``run.json``."""

    format: int = 1
    workload: str
    options: dict[str, Any]  # as the run got them, defaults filled in
    plan: dict[str, Any]  # the learning-rate plan
    workers: int
    emulated_workers: int = 0
    hosts: int = 1
    threads_per_worker: int = 0
    versions: dict[str, str] = {}
    host: dict[str, Any] = {}  # hostname, cpu_model, cores, memory_bytes, system
    git: dict[str, Any] = {}  # of the folder it was started in: commit, dirty; {} if none
    command: list[str] = []
    pid: int = 0
    started: str = ""  # ISO, UTC
    first_step: str = ""  # when that had ended
    ended: str = ""
    state: State = "running"
    error: str = ""
    result: dict[str, Any] = {}
    generations: list[Generation] = []  # of an elastic job


class RunNote:
    """The run.json of a run that is under way, on the rank that keeps it.

    >>> import tempfile
    >>> from hora.workloads import WorkloadOptions
    >>> folder = tempfile.TemporaryDirectory()
    >>> note = RunNote(WorkloadOptions(out=folder.name), {}, workers=2)
    >>> read(Path(folder.name)).state
    'running'
    >>> note.end(UsageError("the data ended"), {})
    >>> read(Path(folder.name)).state, read(Path(folder.name)).error
    ('failed', 'the data ended')
    >>> folder.cleanup()
    """

    def __init__(
        self,
        options: Any,
        plan: Any,
        *,
        workers: int,
        emulated_workers: int = 0,
        hosts: int = 1,
        threads: int = 0,
        earlier: RunFile | None = None,
        began: str = "",
    ) -> None:
        """``began``: when the run did, if that was not now. With ``earlier``, continue the record of another worker of
        the same elastic job, which was lost."""
        self._path = options.out_folder / FILE
        self._file = RunFile(
            workload=options.workload,
            options=msgspec.to_builtins(options),
            plan=msgspec.to_builtins(plan),
            workers=workers,
            emulated_workers=emulated_workers,
            hosts=hosts,
            threads_per_worker=threads,
            **environment(),
            command=list(sys.orig_argv),
            pid=os.getpid(),
            started=began or now(),
        )
        if earlier is not None:
            self._file.workers, self._file.emulated_workers = earlier.workers, earlier.emulated_workers
            self._file.started, self._file.first_step = earlier.started, earlier.first_step
            self._file.generations = earlier.generations
        self._write()

    def generation(self, step: int, number: int, peers: Iterable[Peer]) -> None:
        """The workers of an elastic job have changed, after that step."""
        members = [(peer.launched_rank, peer.host, peer.pid) for peer in peers]
        before = {each[0] for each in self._file.generations[-1].members} if self._file.generations else set()
        now_in = [each[0] for each in members]
        self._file.generations.append(
            Generation(
                number=number,
                began=now(),
                step=step,
                members=members,
                came=[worker for worker in now_in if worker not in before],
                left=sorted(before - set(now_in)),
            )
        )
        self._write()

    def goes_on(self, without_steps_s: float | None) -> None:
        """The first step of the last generation has ended, so long after the last one before."""
        self._file.generations[-1].without_steps_s = without_steps_s
        self._write()

    def first_step(self) -> None:
        """The first step has ended; it is written down with the end."""
        self._file.first_step = self._file.first_step or now()

    def end(self, error: BaseException | None, result: Mapping[str, Any]) -> None:
        """It is over; how, says what ended it. Only the first end counts."""
        if self._file.state != "running":
            return
        self._file.state, self._file.error = ending(error)
        self._file.ended, self._file.result = now(), dict(result)
        try:
            self._write()
        except UsageError:
            if error is None:  # else it has been said what matters
                raise

    def _write(self) -> None:
        try:
            write_json(self._path, self._file)
        except OSError as error:
            raise UsageError(
                f"{self._path} cannot be written: {error.strerror}. Give another folder with --out."
            ) from None


def ending(error: BaseException | None) -> tuple[State, str]:
    """The state that an exception leaves behind, and one line about it.

    >>> ending(None), ending(SystemExit(75)), ending(KeyError("loss"))
    (('done', ''), ('interrupted', 'stop requested'), ('failed', "KeyError: 'loss'"))
    """
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return "done", ""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", "interrupted"
    if isinstance(error, SystemExit):
        left = error.code == PREEMPTED_EXIT_CODE
        return ("interrupted", "stop requested") if left else ("failed", f"exit code {error.code}")
    line = " ".join(str(error).split())[:500]
    if isinstance(error, HoraError) and line:
        return "failed", line
    return "failed", f"{type(error).__name__}: {line}".removesuffix(": ")


def environment() -> dict[str, Any]:
    """``versions``, ``host`` and ``git`` of this process, as they stand in run.json and experiment.json.

    >>> sorted(environment()), environment()["host"]["cores"] > 0
    (['git', 'host', 'versions'], True)
    """
    versions = {"python": platform.python_version(), "hora": __version__}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    host = {
        "hostname": socket.gethostname(),
        "cpu_model": cpu_model(),
        "cores": os.cpu_count() or 1,  # this process may be bound to some of them
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()}",
    }
    return {"versions": versions, "host": host, "git": _git()}


def now() -> str:
    """This moment as records have it: UTC, to the millisecond.

    >>> len(now()), now()[-1]
    (24, 'Z')
    """
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def cpu_model() -> str:
    """What the processor of this machine is called; its kind, on systems that do not name it."""
    try:
        found = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.machine()


def _git() -> dict[str, Any]:
    """The commit of the folder we are in, and whether files differ from it; {} outside of any, or without git."""
    try:
        said = subprocess.run(
            ["git", "--no-optional-locks", "status", "--porcelain=v2", "--branch", "--untracked-files=no"],
            capture_output=True, text=True, timeout=_GIT_S, stdin=subprocess.DEVNULL,
        ).stdout.splitlines()  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return {}
    facts = dict(line.removeprefix("# branch.").split(" ", 1) for line in said if line.startswith("# branch."))
    dirty = any(not line.startswith("#") for line in said)
    return {"commit": facts["oid"], "branch": facts.get("head", ""), "dirty": dirty} if "oid" in facts else {}


# ---- files ----


def read(folder: Path) -> RunFile:
    """The run.json of a folder; BadData if it is missing or incomplete."""
    return read_json(folder / FILE, RunFile, "Give the --out folder of a run of 'hora train'.")


def earlier(folder: Path) -> RunFile | None:
    """The same; None if it is not there."""
    try:
        return read(folder)
    except BadData:
        return None


def read_json(path: Path, kind: type[T], advice: str) -> T:
    """A record. A number that was none when it was written is nan."""
    try:
        return from_json(path.read_bytes(), kind)
    except FileNotFoundError:
        what = "is empty" if path.parent.is_dir() and not any(path.parent.iterdir()) else f"has no {path.name}"
        what = what if path.parent.is_dir() else "does not exist"
        raise BadData(f"{path.parent} {what}. {advice}") from None
    except OSError as error:
        raise BadData(f"{path} cannot be read: {error.strerror}. {advice}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadData(f"{path} is not a record of Hora: {error}. Delete it, or put back what was there.") from None


def write_json(path: Path, value: Any) -> None:
    """Write a record, whole; may raise OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(json_text(value))
