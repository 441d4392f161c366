"""Tensors on devices of two hosts: NCCL (played) carries them, over the interface by which the hosts have met."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests import device as standin
from tests.cluster.hosts import Cluster
from tests.cluster.sshd import Sshd
from tests.cluster.watch import hora_run
from tests.device.need import needs_standin

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180), needs_standin]

ROOT = Path(__file__).parents[2]
WORKER = Path(__file__).with_name("device_worker.py")


def test_devices_of_two_hosts(two_hosts: Cluster, ssh: Sshd, tmp_path: Path) -> None:
    standin.compiled()  # here, and not on two hosts at a time
    variables = [f"PYTHONPATH={ROOT / 'src'}:{ROOT}", "STANDIN_DEVICES=2"]
    job = ["env", *variables, *hora_run("-np", "4", "-H", "h1:2,h2:2", sys.executable, WORKER)]
    done = two_hosts.login.run(job, 100.0, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    said = [json.loads(line.partition("said ")[2]) for line in done.stdout.splitlines() if "said {" in line]
    assert said == [
        {"backend": "SplitBackend", "transport": "shm+tcp", "sums": [10.0, 4.0, 10], "last": 3, "faults": [],
         "by": ["eth0"]}
    ] * 4  # fmt: skip
    two_hosts.wait_until_gone(str(WORKER))
