"""What an elastic job was asked to be: where it may run, how many workers it has, how long it waits. Starts nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from hora.config import env
from hora.elastic.membership import ElasticLimits
from hora.errors import EnvironmentUnfit, UsageError
from hora.launch.elastic.hosts import Asked, FixedHosts, HostDiscovery, HostScript, SlurmNodes
from hora.launch.elastic.supervise import Elastic
from hora.launch.planning.allocation import find_allocation
from hora.launch.planning.hosts import Host, is_here, read_hosts
from hora.launch.planning.pick import LaunchChoice, On, merge_here
from hora.launch.planning.plan import LaunchPlan

__all__ = ["FLAGS", "Chosen", "choose", "quicker"]

_NO_LIMIT = 1 << 16
_SLURM_S = 5.0  # between two questions to Slurm's controller, which all jobs of a cluster ask
_HOST_TIMEOUT_S = "4"  # a host that says nothing for so long is lost; others wait for it meanwhile

FLAGS = (
    "min_np", "max_np", "slots_per_host", "elastic_timeout", "reset_limit", "blacklist_cooldown_range",
    "host_discovery_script", "spares",
)  # fmt: skip


class Chosen(NamedTuple):
    """Where an elastic job runs, and within which limits."""

    choice: LaunchChoice
    elastic: Elastic


def quicker(environment: Mapping[str, str]) -> dict[str, str]:
    """The workers' environment, in which a lost host is noticed sooner unless the user has said when.

    >>> quicker({})["HORA_HOST_TIMEOUT"]
    '4'
    """
    said = env.find(environment, "HOST_TIMEOUT") is not None
    return dict(environment) if said else {**environment, "HORA_HOST_TIMEOUT": _HOST_TIMEOUT_S}


def choose(asked: Mapping[str, Any], *, restartable: bool = False) -> Chosen:
    """What was asked for: ``FLAGS``, and ``np``, ``hosts``, ``hostfile``, ``on``; what is left out is None. Raises
    UsageError if it is not possible."""
    given = {name: asked.get(name) for name in (*FLAGS, "np", "hosts", "hostfile", "on")}
    np, script = given["np"], given["host_discovery_script"]
    if np == "auto":
        raise UsageError("-np auto in an elastic job. Say how many at least and at most: --min-np 1 --max-np 4.")
    for name in FLAGS:
        value = given.get(name)
        least = 0 if name in ("reset_limit", "spares") else 1
        if isinstance(value, int) and value < least:
            raise UsageError(f"--{name.replace('_', '-')} {value}: give a whole number, at least {least}.")
    fewest = given["min_np"] or np
    if fewest is None:
        raise UsageError("the number of workers is missing. Give --min-np N, the fewest to continue with, or -np N.")
    hosts, on, discovery = _hosts(given, given["max_np"] or max(np or 1, fewest))
    most = given["max_np"] or (_NO_LIMIT if script is not None else max(np or 1, fewest))
    if not fewest <= (np or fewest) <= most:
        shown = "" if np is None else f", -np {np}"
        raise UsageError(
            f"--min-np {fewest}{shown}, --max-np {most} are not in order. Give them so that min <= np <= max."
        )
    slots = sum(host.slots for host in hosts)
    if script is None and slots < fewest:
        listed = ",".join(f"{host.name}:{host.slots}" for host in hosts)
        raise UsageError(
            f"--min-np {fewest} asks for more workers than there are slots: {listed} has {slots}. Ask for fewer, "
            "or give the hosts more slots."
        )
    limits = ElasticLimits(
        min_np=fewest,
        max_np=most,
        np=np or 0,
        spares=given["spares"] or 0,
        reset_limit=given["reset_limit"],
        timeout_s=float(given["elastic_timeout"] or 600),
        rest_s=_rests(given["blacklist_cooldown_range"]),
        restartable=restartable,
    )
    return Chosen(LaunchChoice(on, LaunchPlan(hosts, (), True)), Elastic(limits, discovery))


def _rests(given: tuple[int, int] | None) -> tuple[float, float]:
    if given is None:
        return (1.0, 60.0)
    if not 1 <= given[0] <= given[1] <= 3600:
        raise UsageError(
            f"--blacklist-cooldown-range {given[0]} {given[1]}: give the least and the most seconds, between 1 and "
            "3600, the least first."
        )
    return float(given[0]), float(given[1])


def _hosts(given: Mapping[str, Any], most: int) -> tuple[tuple[Host, ...], On, HostDiscovery]:
    script, on = given["host_discovery_script"], given["on"]
    if script is not None:
        if given["hosts"] is not None or given["hostfile"] is not None:
            raise UsageError("--host-discovery-script and a list of hosts were both given. Give one of them.")
        asked = Asked(HostScript(script, given["slots_per_host"] or 1))
        return (Host("localhost", most),), on or "ssh", asked
    if given["hosts"] is not None or given["hostfile"] is not None:
        hosts = merge_here(read_hosts(given["hosts"], given["hostfile"], None))
    elif on == "ray":
        from hora.launch.starters.ray import cluster_hosts

        return cluster_hosts(), on, Asked(lambda: {host.name: host.slots for host in cluster_hosts()})
    elif on != "local" and (allocation := find_allocation(env.environ())) is not None:
        hosts = merge_here(allocation.hosts)
        on = on or ("slurm" if allocation.system == "Slurm" else "ssh")
        if on == "slurm":
            slots = {host.name: host.slots for host in hosts}
            nodes = SlurmNodes(env.environ()["SLURM_JOB_ID"], slots, given["slots_per_host"])
            return hosts, "slurm", Asked(nodes, every_s=_SLURM_S, first=slots)
    elif on == "slurm":
        raise EnvironmentUnfit(
            "--on slurm needs an allocation, and this process is in none. Call it in a script for sbatch, or in a "
            "shell of salloc; 'hora submit --elastic' writes such a script."
        )
    else:
        hosts = (Host("localhost", most),)
    here = all(is_here(host.name) for host in hosts)
    if on == "local" and not here:
        raise UsageError("--on local, but not all hosts are this machine. Leave --on out, or choose --on ssh.")
    return hosts, on or ("local" if here else "ssh"), FixedHosts({host.name: host.slots for host in hosts})
