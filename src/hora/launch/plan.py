"""Which worker runs where: hosts and slots in, ranks and their environment out. Pure; starts nothing.

A plan has exactly as many workers as were asked for. Hosts are filled in the order given, each before the next.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hora.config.world import Place, is_homogeneous, places
from hora.errors import EnvironmentUnfit, UsageError
from hora.launch.hosts import Host, is_here

__all__ = ["Plan", "Worker", "make_plan", "require_this_host", "threads_per_worker"]


class Worker(NamedTuple):
    """One process to start."""

    rank: int
    host: str
    place: Place


class Plan(NamedTuple):
    """All processes of a job, in rank order, and the hosts they run on."""

    hosts: tuple[Host, ...]
    workers: tuple[Worker, ...]
    homogeneous: bool

    @property
    def size(self) -> int:
        return len(self.workers)

    def environment(self, worker: Worker) -> dict[str, str]:
        """The variables that tell a worker its place, under Hora's and Horovod's names."""
        place = worker.place
        values = {
            "RANK": worker.rank,
            "SIZE": self.size,
            "LOCAL_RANK": place.local_rank,
            "LOCAL_SIZE": place.local_size,
            "CROSS_RANK": place.cross_rank,
            "CROSS_SIZE": place.cross_size,
            "HOSTNAME": worker.host,
            "HOMOGENEOUS": int(self.homogeneous),
        }
        return {prefix + name: str(value) for name, value in values.items() for prefix in ("HORA_", "HOROVOD_")}


def make_plan(hosts: Sequence[Host], np: int) -> Plan:
    """``np`` workers on ``hosts``.

    >>> plan = make_plan([Host("h1", 2), Host("h2", 4)], 3)
    >>> [(worker.rank, worker.host) for worker in plan.workers]
    [(0, 'h1'), (1, 'h1'), (2, 'h2')]
    """
    if np < 1:
        raise UsageError(f"-np {np} asks for no worker. Give a whole number, at least 1, or 'auto' for one per core.")
    names = [host.name for host in hosts for _ in range(host.slots)]
    if np > len(names):
        listed = ",".join(f"{host.name}:{host.slots}" for host in hosts)
        raise UsageError(
            f"-np {np} asks for more workers than there are slots: {listed} has {len(names)}. "
            "Ask for fewer workers, or give the hosts more slots."
        )
    names = names[:np]
    used = tuple(host for host in hosts if host.name in names)
    workers = tuple(
        Worker(rank, host, place) for rank, (host, place) in enumerate(zip(names, places(names), strict=True))
    )
    return Plan(used, workers, is_homogeneous(names))


def require_this_host(plan: Plan) -> None:
    """Refuse a plan with workers elsewhere."""
    remote = [host.name for host in plan.hosts if not is_here(host.name)]
    if remote:
        verb = "is" if len(remote) == 1 else "are"
        raise EnvironmentUnfit(
            f"{', '.join(remote)} {verb} not this machine ({socket.gethostname()}), and remote hosts are not available "
            "yet in this version. Run on this machine, or start the workers with mpirun or srun."
        )


def threads_per_worker(env: Mapping[str, str], local_size: int) -> int | None:
    """How many compute threads each worker should use, or None if the user has decided.

    Frameworks take a thread per core by default; several workers on a host would then fight for the cores.

    >>> threads_per_worker({"OMP_NUM_THREADS": "4"}, 2) is None
    True
    """
    if env.get("OMP_NUM_THREADS"):
        return None
    return max(1, len(os.sched_getaffinity(0)) // local_size)
