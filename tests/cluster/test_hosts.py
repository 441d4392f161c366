"""The test cluster itself: what the other tests rely on."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest
from tests.cluster.hosts import Cluster, missing_for_hosts, python
from tests.cluster.slurm import Slurm
from tests.cluster.sshd import Sshd
from tests.launch.jobs import wait_until

HELLO = "import socket; s = socket.create_server(('', 5000)); print('open', flush=True); s.accept()"
CONNECT = "import socket; socket.create_connection(('h2', 5000), 1)"


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    if missing := missing_for_hosts():
        pytest.skip(missing)
    return Cluster(2, tmp_path)


def test_hosts_have_their_own_names_processes_and_files(two_hosts: Cluster) -> None:
    for host in two_hosts:
        assert host.run(["hostname"]).stdout.strip() == host.name
    h1, h2 = two_hosts.hosts
    h1.run(["touch", "/tmp/mine", "/dev/shm/mine"], check=True)
    assert h2.run(["ls", "/tmp/mine"]).returncode != 0 and not Path("/tmp/mine").exists()
    sleeper = h1.popen(["sleep", "6006"])
    try:
        wait_until(lambda: list(two_hosts.processes("6006").values()) == ["sleep 6006 "], what="the sleeper to be seen")
        [(host, pid)] = [place.split(":") for place in two_hosts.processes("6006")]
        assert host == "h1"
        h1.signal(int(pid), signal.SIGKILL)
        assert sleeper.wait(10) == -signal.SIGKILL
    finally:
        sleeper.kill()
        sleeper.wait()


def test_a_cut_link_carries_nothing_until_it_is_mended(two_hosts: Cluster) -> None:
    h1, h2 = two_hosts.hosts
    listener = h2.start(python("-c", HELLO))
    assert listener.stdout is not None and listener.stdout.readline() == "open\n"
    try:
        h2.cut()
        assert "timed out" in h1.run(python("-c", CONNECT)).stdout
        h2.mend()
        wait_until(lambda: h1.run(python("-c", CONNECT)).returncode == 0, what="the mended link")
        assert listener.wait(10) == 0
    finally:
        h2.mend()
        listener.kill()
        listener.communicate()


def test_nothing_is_left_of_a_closed_cluster(cluster: Cluster) -> None:
    inits = [host.init for host in cluster]
    h1 = cluster["h1"]
    h1.run(["setsid", "--fork", "sleep", "600"], check=True)
    stubborn = h1.popen(["sh", "-c", "trap '' TERM HUP INT; echo; while :; do sleep 600; done"])
    outer = list(h1.pids().values())
    cluster.close()
    assert stubborn.wait(10) != 0
    for pid in (*inits, *outer):
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_ssh_reaches_every_host(two_hosts: Cluster, ssh: Sshd) -> None:
    for host in two_hosts.hosts:
        assert two_hosts.login.run(["ssh", "-o", "BatchMode=yes", host.name, "hostname"]).stdout.strip() == host.name


def test_slurm_runs_tasks_on_every_host(two_hosts: Cluster, slurm: Slurm) -> None:
    job = slurm.sbatch("#!/bin/sh\nsrun hostname\n", "--nodes=2", "--ntasks-per-node=2")
    assert sorted(job.wait(30).split()) == ["h1", "h1", "h2", "h2"]
    assert job.state == "COMPLETED" and job.exit_code == 0
