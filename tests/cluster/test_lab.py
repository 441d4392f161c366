"""`hora lab` knows what room the hosts have: two that are one machine, as these are, share its cores."""

from __future__ import annotations

import os
import sys

import pytest
from tests.cluster.hosts import Cluster
from tests.cluster.sshd import Sshd

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

ASKED = "from hora.lab.throughput.cores import survey; print(survey(2, 'h1:1,h2:1'))"


def test_hosts_that_are_one_machine_share_its_cores(two_hosts: Cluster, ssh: Sshd) -> None:
    done = two_hosts.login.run([sys.executable, "-c", ASKED], 120.0)
    assert f"FullestHost(cores={len(os.sched_getaffinity(0))}, workers=2)" in done.stdout, done.stdout
