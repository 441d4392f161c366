"""What a tree of processes uses: CPU time, memory and, where there is one, the GPUs of this host.

It is looked at now and then; the time of a process that comes and goes between two looks is not counted. Memory that
processes share is counted once, as far as the kernel tells (PSS).
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import statistics
import subprocess
import time
from itertools import pairwise
from pathlib import Path

import psutil

from hora.config import env
from hora.doctor.machine import Machine, cgroup_limits

__all__ = ["Usage", "cores"]

_MOST_LOOKS = 400  # in a record
_MEMORY_EVERY = 3  # looks; to count what is shared once takes the kernel 5 ms for a process with torch
_GPU_QUERY = ("--query-gpu=index,utilization.gpu", "--format=csv,noheader,nounits", "-lms", "500")


def cores() -> float:
    """How many cores this process and its children may use: those it is bound to, less if a quota says so."""
    bound = len(os.sched_getaffinity(0))
    quota = cgroup_limits(Machine(env.environ())).cpus
    return min(bound, quota) if quota else bound


class Usage:
    """The use of a process and all below it, from now on."""

    def __init__(self, pid: int, gpu_log: Path) -> None:
        self._root = psutil.Process(pid)
        self._cores = cores()
        self._cpu_s: dict[psutil.Process, float] = {}  # those that have gone keep what they had
        self._looks: list[tuple[float, float]] = []  # when, and CPU seconds of all until then
        self._ranks: dict[psutil.Process, int | None] = {}  # whose each process is
        self._by_rank: list[tuple[float, dict[int, float]]] = []  # when, and CPU seconds of each rank until then
        self._began = time.time()
        self.memory_bytes = 0
        self._gpu_log, self._gpu_watch = gpu_log, _watch_gpus(gpu_log)

    @property
    def processes(self) -> list[psutil.Process]:
        """All that were ever seen."""
        return list(self._cpu_s)

    def look(self) -> None:
        """Take a sample."""
        try:
            tree = [self._root, *self._root.children(recursive=True)]
        except psutil.Error:
            return
        memory, with_memory = 0, len(self._looks) < 3 or len(self._looks) % _MEMORY_EVERY == 0
        for process in tree:
            try:
                times = process.cpu_times()
                self._cpu_s[process] = times.user + times.system
                memory += _memory(process) if with_memory else 0
            except psutil.Error:  # it has just ended
                continue
        self.memory_bytes = max(self.memory_bytes, memory)
        now = time.time()
        self._looks.append((now, sum(self._cpu_s.values())))
        spent: dict[int, float] = {}
        for process, seconds in self._cpu_s.items():
            if process not in self._ranks:
                self._ranks[process] = _rank(process)
            if (rank := self._ranks[process]) is not None:
                spent[rank] = spent.get(rank, 0.0) + seconds
        self._by_rank.append((now, spent))

    def cpu_share(self, between: tuple[float, float] = (-math.inf, math.inf)) -> float:
        """The share of the cores that was used in this time; of the whole run, if it has fewer than two samples."""
        within = [look for look in self._looks if between[0] <= look[0] <= between[1]]
        looks = within if len(within) > 1 else self._looks
        if len(looks) < 2 or looks[-1][0] <= looks[0][0]:
            return math.nan
        return (looks[-1][1] - looks[0][1]) / (looks[-1][0] - looks[0][0]) / self._cores

    def cpu_over_time(self) -> list[list[float]]:
        """For each sample: seconds since the start, and how many cores each rank used; nothing if no process is a
        rank's. Long runs are thinned out."""
        ranks = sorted({rank for _, spent in self._by_rank for rank in spent})
        looks = [look for look in self._by_rank if look[1]] if ranks else []
        looks = looks[:: max(1, len(looks) // _MOST_LOOKS)]
        rows = []
        for (before, had), (now, has) in pairwise(looks):
            passed = now - before
            if passed > 0:
                used = [max(0.0, has.get(rank, 0.0) - had.get(rank, 0.0)) / passed for rank in ranks]
                rows.append([round(now - self._began, 2), *(round(value, 3) for value in used)])
        return rows

    def gpu_over_time(self) -> list[list[float]]:
        """The same of the GPUs, as shares of the time; half a second from row to row."""
        rows: list[list[float]] = []
        for index, share in self._gpu_lines():
            if index == 0 or not rows:
                rows.append([0.5 * len(rows)])
            rows[-1].append(share)
        return rows[:: max(1, len(rows) // _MOST_LOOKS)]

    def _gpu_lines(self) -> list[tuple[int, float]]:
        try:
            lines = [line.split(",") for line in self._gpu_log.read_text().splitlines() if line.strip()]
            return [(int(index), float(value) / 100) for index, value in lines]
        except (OSError, ValueError):
            return []

    def gpu_share(self) -> float | None:
        """The mean use of all GPUs of this host; None if there are none, or nothing can be asked about them."""
        values = [share for _, share in self._gpu_lines()]
        return statistics.fmean(values) if values else None

    def close(self) -> None:
        """Look no more; what was seen stays."""
        if self._gpu_watch is not None:
            self._gpu_watch.kill()
            self._gpu_watch.wait()


def _rank(process: psutil.Process) -> int | None:
    """The rank whose process this is, or whose child it is; None of a launcher."""
    with contextlib.suppress(psutil.Error, ValueError):
        variables = process.environ()
        if "HORA_RANK" in variables:
            return int(variables["HORA_RANK"])
    return None


def _memory(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.AccessDenied, AttributeError):
        return int(process.memory_full_info().pss)
    info = process.memory_info()
    return int(info.rss - getattr(info, "shared", 0))


def _watch_gpus(log: Path) -> subprocess.Popen[bytes] | None:
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    with open(log, "wb") as file:
        return subprocess.Popen(
            [command, *_GPU_QUERY], stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.DEVNULL
        )
