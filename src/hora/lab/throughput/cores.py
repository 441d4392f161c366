"""What the machine has room for, and what else it was doing meanwhile."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import subprocess
import sys
from typing import NamedTuple

import psutil

from hora.config import env
from hora.lab.trial import usage
from hora.launch.host.placement import read_topology
from hora.launch.planning.hosts import parse_hosts
from hora.text import share_text

__all__ = ["FullestHost", "LoadMonitor", "cores", "fair_threads", "physical_cores", "survey", "workers_per_host"]

_SURVEY_S = 120.0
_ASKED = (
    "import os; boot = open('/proc/sys/kernel/random/boot_id').read().strip(); "
    "print('room', boot, len(os.sched_getaffinity(0)), flush=True)"
)
BUSY = 0.1  # of the cores, taken by others, is worth a caution


def cores() -> int:
    """The cores that this process may use: those it is bound to, and no more than a container's quota."""
    return max(1, int(usage.cores()))


def physical_cores() -> int:
    """Those of them that are cores, not hyperthreads of one; 0 if the kernel does not tell."""
    topology = read_topology()
    return len({topology[cpu].core for cpu in os.sched_getaffinity(0) if cpu in topology})


def workers_per_host(workers: int, hosts: str) -> int:
    """How many workers the fullest host gets, if hosts are filled in order.

    >>> workers_per_host(3, ""), workers_per_host(3, "h1:2,h2:2"), workers_per_host(1, "h1:2,h2:2")
    (3, 2, 1)
    """
    if not hosts:
        return workers
    left, most = workers, 0
    for host in parse_hosts(hosts):
        most = max(most, min(left, host.slots))
        left -= min(left, host.slots)
    return max(most, left)


def fair_threads(workers: int, hosts: str = "", *, of: int | None = None) -> int:
    """How many threads a worker can have if each is to have a core.

    >>> fair_threads(2, of=8), fair_threads(16, of=8), fair_threads(4, "h1:2,h2:2", of=8)
    (4, 1, 4)
    """
    return max(1, (cores() if of is None else of) // workers_per_host(workers, hosts))


class FullestHost(NamedTuple):
    """The machine that has the fewest cores for each of its workers."""

    cores: int
    workers: int

    @property
    def threads(self) -> int:
        """That each worker can have, if each thread is to have a core.

        >>> FullestHost(8, 2).threads, FullestHost(2, 4).threads
        (4, 1)
        """
        return max(1, self.cores // self.workers)


def survey(workers: int, hosts: str) -> FullestHost:
    """The hosts of that many workers. A small job finds out how many cores other hosts have, and whether two are
    one machine, as containers are. If it fails, they are assumed to be like this one."""
    if not hosts:
        return FullestHost(cores(), workers)
    command = [sys.executable, "-m", "hora", "run", "-np", str(workers), "-H", hosts, "--no-bind", sys.executable, "-c"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            [*command, _ASKED], env=dict(env.environ()), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=_SURVEY_S,
        )  # fmt: skip
        if (found := fullest(done.stdout)) is not None:
            return found
    return FullestHost(cores(), workers_per_host(workers, hosts))


def fullest(said: str) -> FullestHost | None:
    """The room of the fullest machine that is spoken of; None if none is.

    >>> fullest("[0]<stdout>:room 7c5e-1 2\\n[1]<stdout>:room 7c5e-1 2\\n[2]<stdout>:room 99aa-2 8\\n")
    FullestHost(cores=2, workers=2)
    """
    machines: dict[str, list[int]] = {}
    for machine, count in re.findall(r"room ([0-9a-f-]+) (\d+)", said):
        machines.setdefault(machine, []).append(int(count))
    return min(
        (FullestHost(max(counts), len(counts)) for counts in machines.values()),
        key=lambda fullest_host: fullest_host.cores / fullest_host.workers,
        default=None,
    )


class LoadMonitor:
    """How busy others keep the machine while trials run, which are children of this process."""

    def __init__(self) -> None:
        self._before, self._own_s = psutil.cpu_times(), _own_s()

    def others(self) -> float:
        """The share of the machine that they took since then."""
        passed = [now - before for now, before in zip(psutil.cpu_times(), self._before, strict=True)]
        fields = dict(zip(self._before._fields, passed, strict=True))
        total = sum(value for name, value in fields.items() if not name.startswith("guest"))
        idle = fields.get("idle", 0.0) + fields.get("iowait", 0.0)
        return max(0.0, (total - idle - (_own_s() - self._own_s)) / total) if total > 0 else 0.0

    def caution(self) -> str:
        """A sentence if that was a tenth or more."""
        others = self.others()
        if others < BUSY:
            return ""
        return (
            f"caution: other processes took {share_text(others)} of this machine meanwhile; what was measured is too "
            "slow by an unknown amount, and verdicts about cores are not reliable"
        )


def _own_s() -> float:
    """Seconds of the processor that this process and its children have used, those that have ended."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)
