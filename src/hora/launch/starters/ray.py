"""Agents on a Ray cluster: one task a node, which runs the agent for as long as the job lasts. Needs ``hora[ray]``."""

from __future__ import annotations

import contextlib
import importlib
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

from hora.config import env
from hora.errors import EnvironmentUnfit
from hora.launch.planning.hosts import Host
from hora.launch.starters.ssh import exported
from hora.launch.starters.starter import AgentCarrier, agent_command, explain_end, shown

__all__ = ["RayStarter", "cluster_hosts"]

_TASK_S = 2.0  # for a task to end after its agent


def cluster_hosts() -> tuple[Host, ...]:
    """The nodes of the cluster, each with a slot per CPU (or GPU, if it has any) that Ray counts there."""
    ray = _connect()
    hosts = []
    for node in _nodes(ray):
        resources = node["Resources"]
        slots = int(resources.get("GPU", 0) or resources.get("CPU", 0))
        if slots:
            hosts.append(Host(_name(node), slots))
    if not hosts:
        raise EnvironmentUnfit("the Ray cluster has no node with CPUs. Add one with 'ray start --address=…'.")
    return tuple(hosts)


class RayStarter:
    """Reaches the nodes of the Ray cluster that RAY_ADDRESS names, or that runs on this machine."""

    name = "ray"

    def environment(self, environment: Mapping[str, str]) -> Mapping[str, str]:
        return exported(environment)

    def commands(self, hosts: Sequence[str]) -> list[tuple[str, str]]:
        return [(host, f"a Ray task on this node runs {shown(agent_command())}") for host in hosts]

    def start(self, hosts: Sequence[str]) -> list[AgentCarrier]:
        ray = _connect()
        nodes = {_name(node): node["NodeID"] for node in _nodes(ray)}
        unknown = [host for host in hosts if host not in nodes]
        if unknown:
            raise EnvironmentUnfit(
                f"{', '.join(unknown)} is not among the nodes of the Ray cluster ({', '.join(nodes)}). "
                "Leave -H out to use all of them, or add it with 'ray start --address=…'."
            )
        return [_RayTask(ray, host, nodes[host]) for host in hosts]

    def explain(self, host: str, code: int, said: str) -> str:
        return explain_end(host, "Ray", code, said)


def _connect() -> Any:
    try:
        ray = importlib.import_module("ray")
    except ImportError:
        raise EnvironmentUnfit("--on ray needs Ray, which is not installed. Run 'pip install ray'.") from None
    if not ray.is_initialized():
        try:
            ray.init(address=env.environ().get("RAY_ADDRESS") or "auto", logging_level="ERROR", log_to_driver=False)
        except Exception as error:  # Ray raises many kinds
            raise EnvironmentUnfit(
                f"no Ray cluster can be reached: {error}. Start one with 'ray start --head', or set RAY_ADDRESS."
            ) from error
    return ray


def _nodes(ray: Any) -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def _name(node: Mapping[str, Any]) -> str:
    return str(node.get("NodeName") or node["NodeManagerHostname"])


def _run_agent(command: Sequence[str], feed: bytes) -> tuple[int, str]:
    """Runs in a Ray task, on the agent's node."""
    done = subprocess.run(list(command), input=feed, capture_output=True)
    return done.returncode, done.stderr.decode("utf-8", "replace")


class _RayTask:
    """A carrier that is a Ray task."""

    handle: int | None = None

    def __init__(self, ray: Any, host: str, node: str) -> None:
        self.hosts: tuple[str, ...] = (host,)
        self._ray = ray
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        # No CPU is asked for: the workers share out the node's themselves.
        remote = ray.remote(num_cpus=0, max_retries=0)(_run_agent)
        self._pinned = remote.options(scheduling_strategy=strategies.NodeAffinitySchedulingStrategy(node, soft=False))
        self._result: Any = None
        self._outcome: tuple[int, str] | None = None

    def feed(self, data: bytes) -> None:
        self._result = self._pinned.remote(agent_command(), data)

    def poll(self) -> int | None:
        if self._outcome is None:
            if self._result is None:
                return None
            ended, _ = self._ray.wait([self._result], timeout=0)
            if not ended:
                return None
            try:
                self._outcome = self._ray.get(self._result)
            except Exception as error:  # the task did not come to be, or its process was killed
                self._outcome = 1, str(error)
        return self._outcome[0] if self._outcome is not None else None

    def said(self) -> str:
        return self._outcome[1] if self._outcome is not None else ""

    def leave(self) -> None:
        deadline = time.monotonic() + _TASK_S
        while self.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        self.stop()

    def stop(self) -> None:
        if self._result is not None and self.poll() is None:
            with contextlib.suppress(Exception):
                self._ray.cancel(self._result, force=True)
