"""Which worker runs where: hosts and slots in, ranks and their environment out. Pure; starts nothing.

A plan has exactly as many workers as were asked for. Hosts are filled in the order given, each before the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from hora.config.world import MOST_ON_A_HOST, RankPosition, is_homogeneous, places
from hora.errors import UsageError
from hora.launch.host.orders import Share, WorkerTask
from hora.launch.planning.hosts import Host

__all__ = ["LaunchPlan", "PlannedWorker", "make_plan", "shares"]


class PlannedWorker(NamedTuple):
    """One process to start."""

    rank: int
    host: str
    place: RankPosition


class LaunchPlan(NamedTuple):
    """All processes of a job, in rank order, and the hosts they run on."""

    hosts: tuple[Host, ...]
    workers: tuple[PlannedWorker, ...]
    homogeneous: bool

    @property
    def size(self) -> int:
        return len(self.workers)

    def environment(self, worker: PlannedWorker) -> dict[str, str]:
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


def make_plan(hosts: Sequence[Host], np: int) -> LaunchPlan:
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
    for host, count in Counter(names).items():
        if count > MOST_ON_A_HOST:
            raise UsageError(
                f"-np {np} puts {count} workers on {host}, and at most {MOST_ON_A_HOST} can share a host's memory. Use "
                "more hosts, or fewer workers with more threads each."
            )
    workers = tuple(
        PlannedWorker(rank, host, place) for rank, (host, place) in enumerate(zip(names, places(names), strict=True))
    )
    return LaunchPlan(used, workers, is_homogeneous(names))


def shares(plan: LaunchPlan, name: str) -> tuple[Share, ...]:
    """What each host of the plan runs, for the job called ``name``.

    >>> [(share.host, [task.rank for task in share.tasks]) for share in shares(make_plan([Host("h1", 2)], 2), "job")]
    [('h1', [0, 1])]
    """
    return tuple(
        Share(
            host.name,
            f"{name}.{index}",
            tuple(
                WorkerTask(worker.rank, worker.place.local_rank, worker.place.local_size, plan.environment(worker))
                for worker in plan.workers
                if worker.host == host.name
            ),
        )
        for index, host in enumerate(plan.hosts)
    )


def environment_of_worker(worker: int, host: str) -> dict[str, str]:
    """The variables that tell a worker what it is; its rank it learns when it meets the others.

    >>> environment_of_worker(3, "h1")["HORA_WORKER"]
    '3'
    """
    return {
        "HORA_WORKER": str(worker),
        "HORA_HOSTNAME": host,
        "HOROVOD_HOSTNAME": host,
        "HOROVOD_ELASTIC": "1",
    }
