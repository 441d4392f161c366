"""The clusters that tests run on: made once, when the first test asks for one, and gone with the test run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cluster.hosts import Cluster, missing_for_hosts
from tests.cluster.ray import RayCluster, missing_for_ray
from tests.cluster.slurm import Slurm, missing_for_slurm
from tests.cluster.sshd import Sshd, missing_for_ssh


@pytest.fixture(scope="session")
def two_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """``login``, ``h1`` and ``h2``."""
    if missing := missing_for_hosts():
        pytest.skip(missing)
    cluster = Cluster(2, tmp_path_factory.mktemp("cluster"), [tmp_path_factory.getbasetemp()])
    try:
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="session")
def ssh(two_hosts: Cluster) -> Sshd:
    """``two_hosts`` can be reached by ssh, without a password."""
    if missing := missing_for_ssh():
        pytest.skip(missing)
    return Sshd(two_hosts)


@pytest.fixture(scope="session")
def slurm(two_hosts: Cluster) -> Slurm:
    """``two_hosts`` are nodes of Slurm."""
    if missing := missing_for_slurm():
        pytest.skip(missing)
    return Slurm(two_hosts)


@pytest.fixture(scope="module")
def ray_cluster(two_hosts: Cluster) -> Iterator[RayCluster]:
    """``two_hosts`` are nodes of Ray."""
    if missing := missing_for_ray():
        pytest.skip(missing)
    cluster = RayCluster(two_hosts)
    try:
        yield cluster
    finally:
        cluster.close()
