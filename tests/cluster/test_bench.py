"""`hora bench -H` measures between hosts, every contender, and writes what it shows."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.cluster.hosts import Cluster
from tests.cluster.sshd import Sshd

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

MEASURE_S = 120.0


def measured(two_hosts: Cluster, tmp_path: Path, *arguments: str) -> tuple[str, dict[str, set[str]]]:
    """What was printed, and which contenders have a figure above zero in each row."""
    file = tmp_path / "figures.json"
    command = [sys.executable, "-m", "hora", "bench", *arguments, "--json", str(file)]
    done = two_hosts.login.run(command, MEASURE_S, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    rows = json.loads(file.read_text())["rows"]
    return done.stdout, {row["name"]: {k for k, c in row["cells"].items() if c["low_us"] > 0} for row in rows}


def test_allreduce(two_hosts: Cluster, ssh: Sshd, tmp_path: Path) -> None:
    said, rows = measured(two_hosts, tmp_path, "allreduce", "-H", "h1:1,h2:1", "--sizes", "4K", "--rounds", "2")
    assert rows == {"4 KB": {"hora", "hora_bf16", "gloo"}}
    assert "Gloo /" in said  # the ratio, beside the times


def test_launch(two_hosts: Cluster, ssh: Sshd, tmp_path: Path) -> None:
    _, rows = measured(two_hosts, tmp_path, "launch", "-H", "h1:1,h2:1", "--rounds", "1")
    assert list(rows.values()) == [{"hora", "mpi"}]
