"""Running the workers of one contender for a while, and writing down when they finished their steps and who was killed.

The clock is this process's: a line is stamped when it arrives, so workers may be on other hosts.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from hora.bench.drive import hora_command
from hora.bench.elastic.worker import EVENT, ElasticBenchPlan
from hora.config.env import environ
from hora.errors import WorkersFailed

__all__ = ["Event", "missing", "run", "version"]

_END_S = 20.0
_START_S = 120.0


class Event(NamedTuple):
    """``kind`` is ready, step or kill; ``step`` is the number of the last finished and committed one. Or it is cost:
    then ``generation`` is the variant, ``size`` the round, and ``step`` the nanoseconds of a step."""

    at: float
    kind: str
    generation: int
    size: int
    pid: int
    step: int = 0


def missing(contender: str, hosts: str | None = None) -> str:
    """Why a contender cannot be measured here; empty if it can.

    >>> missing("hora")
    ''
    """
    if hosts and contender != "hora":
        return "it is not measured between hosts"
    if contender == "torchft" and importlib.util.find_spec("torchft") is None:
        return "torchft is not installed (pip install torchft-nightly)"
    return ""


def version(contender: str) -> str:
    """Of what was measured; torchrun is torch's, and torchft has been published under two names."""
    for package in ("torch",) if contender == "torchrun" else (contender, f"{contender}-nightly"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return f"{package} {importlib.metadata.version(package)}"
    return "unknown"


class _Log:
    """What the workers of a job print."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.tail: list[str] = []
        self.address = ""
        self._news = threading.Condition()
        self._unread = 0  # processes whose output has not ended

    def read(self, process: subprocess.Popen[str]) -> threading.Thread:
        with self._news:
            self._unread += 1
        thread = threading.Thread(target=self._read, args=(process,), daemon=True)
        thread.start()
        return thread

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            now = time.monotonic()
            _, found, words = line.partition(EVENT)
            with self._news:
                if not found:
                    self.tail = [*self.tail[-60:], line.rstrip("\n")]
                elif words.startswith("address "):
                    self.address = words.split()[1]
                else:
                    kind, *numbers = words.split()
                    self.events.append(Event(now, kind, *map(int, numbers)))
                self._news.notify_all()
        with self._news:
            self._unread -= 1
            self._news.notify_all()

    def until(self, done: Callable[[Sequence[Event]], bool], alive: Callable[[], bool], deadline: float) -> bool:
        """Whether ``done`` came true before the deadline, and before all ended and what they had printed was read."""
        with self._news:
            while not done(self.events):
                if time.monotonic() > deadline or not (alive() or self._unread):
                    return done(self.events)
                self._news.wait(0.2)
            return True


def _start(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, env=dict(environment), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", process_group=0,
    )  # fmt: skip


def _end(process: subprocess.Popen[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)


def run(
    contender: str,
    plan: ElasticBenchPlan,
    done: Callable[[Sequence[Event]], bool],
    *,
    hosts: str | None,
    limit_s: float,
) -> list[Event]:
    """Let it train until ``done`` says so, or for ``limit_s``; then end it. Raises WorkersFailed if it ends before."""
    environment = {**environ(), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    log = _Log()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as ending:
        plan = msgspec.structs.replace(plan, folder=folder)
        text = msgspec.json.encode(plan).decode()
        worker = [sys.executable, "-m", "hora.bench.elastic.worker", contender, text]
        if contender == "torchft":
            alive = ending.enter_context(_replicas(log, worker, plan, environment))
        else:
            process = _start(_command(contender, plan, hosts, worker), environment)
            assert process.stdout is not None
            ending.callback(process.stdout.close)
            ending.callback(log.read(process).join, 2.0)
            ending.callback(_end, process)  # first of these three
            alive = lambda: process.poll() is None  # noqa: E731
        finished = log.until(done, alive, time.monotonic() + _START_S + limit_s)
        if not finished and not alive():
            raise WorkersFailed(f"{contender} ended before it was measured. It said:\n" + "\n".join(log.tail))
    return list(log.events)


def _command(contender: str, plan: ElasticBenchPlan, hosts: str | None, worker: list[str]) -> list[str]:
    if contender == "torchrun":
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "1000"]
        return [*torchrun, "--nproc-per-node", str(plan.np), "--no-python", *worker]
    where = ["-H", hosts] if hosts else []
    few = str(plan.np if not plan.every_s else 1)
    rest = ["--blacklist-cooldown-range", "1", "1"]  # a host that is killed on purpose is no bad one
    return [*hora_command(), "run", "--min-np", few, "--max-np", str(plan.np), *rest, *where, *worker]


@contextlib.contextmanager
def _replicas(
    log: _Log, worker: list[str], plan: ElasticBenchPlan, environment: Mapping[str, str]
) -> Iterator[Callable[[], bool]]:
    """torchft starts nothing itself: a lighthouse, and a process a replica that is started again when it has died."""
    over = threading.Event()
    lighthouse = _start([*worker[:-2], "lighthouse", worker[-1]], environment)
    log.read(lighthouse)
    processes: dict[int, subprocess.Popen[str]] = {}

    def look_after(replica: int) -> None:
        mine = {**environment, "REPLICA": str(replica), "TORCHFT_LIGHTHOUSE": log.address}
        while not over.is_set():
            processes[replica] = _start(worker, mine)
            reader = log.read(processes[replica])
            processes[replica].wait()
            reader.join(2.0)

    threads = [threading.Thread(target=look_after, args=(n,), daemon=True) for n in range(plan.np)]
    try:
        log.until(lambda events: bool(log.address), lambda: lighthouse.poll() is None, time.monotonic() + _START_S)
        for thread in threads:
            thread.start()
        yield lambda: lighthouse.poll() is None
    finally:
        over.set()
        for process in [*processes.values(), lighthouse]:
            _end(process)
        for thread in threads:
            if thread.ident is not None:
                thread.join(_END_S)
