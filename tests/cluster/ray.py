"""A Ray cluster whose nodes are the hosts, with its head on ``h1``."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from tests.cluster.hosts import Cluster, missing_for_hosts
from tests.launch.jobs import wait_until

__all__ = ["RayCluster", "missing_for_ray"]

START_S = 60.0
PORT = 6379


def missing_for_ray() -> str:
    """Why there can be no Ray here, or nothing."""
    return missing_for_hosts() or ("" if importlib.util.find_spec("ray") else "ray not installed")


class RayCluster:
    """The daemons of a cluster. They end with its hosts, or when it is closed."""

    def __init__(self, cluster: Cluster) -> None:
        head, *others = cluster.hosts
        self.env = {"RAY_ADDRESS": f"{head.address}:{PORT}", "RAY_USAGE_STATS_ENABLED": "0"}
        self._ray = Path(sys.executable).with_name("ray")
        small = ["--num-cpus=2", "--object-store-memory=100000000", "--disable-usage-stats"]
        self._nodes = []
        for host in (head, *others):
            role = ["--head", f"--port={PORT}", "--include-dashboard=false"] if host is head else []
            role += [] if host is head else [f"--address={head.address}:{PORT}"]
            command = [self._ray, "start", "--block", *role, f"--node-ip-address={host.address}", *small]
            log = cluster.place / f"ray-{host.name}.log"
            self._nodes.append(host.daemon(command, log))
            wait_until(lambda log=log: "Ray runtime started" in log.read_text(), START_S, f"Ray on {host.name}")

    def close(self) -> None:
        """End the daemons; they would take memory and time from the tests that follow."""
        for node in self._nodes:
            node.kill()  # and with it 'ray start --block', which takes its own with it
