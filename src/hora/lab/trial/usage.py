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
from pathlib import Path

import psutil

from hora.config import env
from hora.lab.doctor import cgroup
from hora.lab.doctor.machine import Machine

__all__ = ["Usage", "cores"]

_MEMORY_EVERY = 3  # looks; to count what is shared once takes the kernel 5 ms for a process with torch
_GPU_QUERY = ("--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "500")


def cores() -> float:
    """How many cores this process and its children may use: those it is bound to, less if a quota says so."""
    bound = len(os.sched_getaffinity(0))
    quota = cgroup.limits(Machine(env.environ())).cpus
    return min(bound, quota) if quota else bound


class Usage:
    """The use of a process and all below it, from now on."""

    def __init__(self, pid: int, gpu_log: Path) -> None:
        self._root = psutil.Process(pid)
        self._cores = cores()
        self._cpu_s: dict[psutil.Process, float] = {}  # those that have gone keep what they had
        self._looks: list[tuple[float, float]] = []  # when, and CPU seconds of all until then
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
        self._looks.append((time.time(), sum(self._cpu_s.values())))

    def cpu_share(self, between: tuple[float, float] = (-math.inf, math.inf)) -> float:
        """Of the cores, the part that was used in this time; of all the time, if there were not two looks in it."""
        within = [look for look in self._looks if between[0] <= look[0] <= between[1]]
        looks = within if len(within) > 1 else self._looks
        if len(looks) < 2 or looks[-1][0] <= looks[0][0]:
            return math.nan
        return (looks[-1][1] - looks[0][1]) / (looks[-1][0] - looks[0][0]) / self._cores

    def gpu_share(self) -> float | None:
        """The mean use of all GPUs of this host; None if there are none, or nothing can be asked about them."""
        try:
            values = [float(line) for line in self._gpu_log.read_text().split()]
        except (OSError, ValueError):
            return None
        return statistics.fmean(values) / 100 if values else None

    def close(self) -> None:
        """Look no more; what was seen stays."""
        if self._gpu_watch is not None:
            self._gpu_watch.kill()
            self._gpu_watch.wait()


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
