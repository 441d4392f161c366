"""Chooses the hosts of a job and how to start workers on them: what was asked for, else what the environment offers."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from hora.errors import EnvironmentUnfit, UsageError
from hora.launch.planning.allocation import Allocation, find_allocation
from hora.launch.planning.hosts import Host, is_here, read_hosts
from hora.launch.planning.plan import LaunchPlan, make_plan

__all__ = ["LaunchChoice", "On", "merge_here", "pick"]

On = Literal["local", "ssh", "slurm", "mpi", "ray"]


class LaunchChoice(NamedTuple):
    """Where and how a job runs; ``why`` is a line for the user, empty if there was nothing to choose."""

    on: On
    plan: LaunchPlan
    why: str = ""


def pick(
    env: Mapping[str, str],
    *,
    np: int | Literal["auto"] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    on: On | None = None,
    ray_hosts: Callable[[], tuple[Host, ...]] | None = None,
) -> LaunchChoice:
    """What to run where. Without hosts an allocation's are taken, and without that this one.

    >>> slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "h[1-2]", "SLURM_TASKS_PER_NODE": "2(x2)"}
    >>> pick(slurm).on, pick(slurm, np=2, on="local").on, pick({}, hosts="h1:2,h2:2").on
    ('slurm', 'local', 'ssh')
    """
    given = hosts is not None or hostfile is not None
    allocation = find_allocation(env)
    if on == "slurm" and (allocation is None or allocation.system != "Slurm"):
        raise EnvironmentUnfit(
            "--on slurm needs an allocation, and this process is in none. Call it in a script for sbatch, or in a "
            "shell of salloc; 'hora submit' writes such a script."
        )
    if given:
        found = read_hosts(hosts, hostfile, None)
    elif on == "ray" and ray_hosts is not None:
        found = ray_hosts()
    elif allocation is not None and on != "local":
        return _in_allocation(allocation, np, on)
    elif np is None:
        raise UsageError("the number of workers is missing. Give -np N, or -np auto for one per core.")
    else:
        found = (Host("localhost", len(os.sched_getaffinity(0)) if np == "auto" else max(1, np)),)
    found = merge_here(found)
    plan = make_plan(found, sum(host.slots for host in found) if np is None or np == "auto" else np)
    chosen = on or _way(plan, allocation)
    if chosen == "local":
        _require_this_host(plan)
    return LaunchChoice(chosen, plan)


def merge_here(hosts: Sequence[Host]) -> tuple[Host, ...]:
    """This machine under one name, the first it was given, however many it has.

    >>> merge_here([Host("localhost", 2), Host("h2", 1), Host("127.0.0.1", 1)])
    (Host(name='localhost', slots=3), Host(name='h2', slots=1))
    """
    here = next((host.name for host in hosts if is_here(host.name)), None)
    slots: dict[str, int] = {}
    for host in hosts:
        name = here if here is not None and is_here(host.name) else host.name
        slots[name] = slots.get(name, 0) + host.slots
    return tuple(Host(name, count) for name, count in slots.items())


def _in_allocation(allocation: Allocation, np: int | Literal["auto"] | None, on: On | None) -> LaunchChoice:
    hosts = merge_here(allocation.hosts)
    slots = sum(host.slots for host in hosts)
    listed = ",".join(f"{host.name}:{host.slots}" for host in hosts)
    count = slots if np is None or np == "auto" else np
    if count > slots:
        raise EnvironmentUnfit(
            f"-np {count} asks for more workers than this {allocation.system} allocation has tasks: {listed} has "
            f"{slots}. {allocation.more}, or give -np {slots}."
        )
    plan = make_plan(hosts, count)
    chosen = on or _way(plan, allocation)
    used = ",".join(f"{host.name}:{sum(worker.host == host.name for worker in plan.workers)}" for host in plan.hosts)
    how = {"slurm": "started by srun", "mpi": "started by mpirun", "local": "all on this machine"}
    text = f"{allocation.system} allocation: {count} workers on {used}, {how.get(chosen, f'started by {chosen}')}"
    return LaunchChoice(chosen, plan, text)


def _way(plan: LaunchPlan, allocation: Allocation | None) -> On:
    if all(is_here(host.name) for host in plan.hosts):
        return "local"
    if allocation is not None and allocation.system == "Slurm":
        mine = {host.name for host in allocation.hosts}
        if all(host.name in mine for host in plan.hosts):
            return "slurm"
    return "ssh"


def _require_this_host(plan: LaunchPlan) -> None:
    remote = [host.name for host in plan.hosts if not is_here(host.name)]
    if remote:
        verb = "is" if len(remote) == 1 else "are"
        raise EnvironmentUnfit(
            f"--on local, but {', '.join(remote)} {verb} not this machine ({socket.gethostname()}). Leave --on out, or "
            "choose --on ssh."
        )
