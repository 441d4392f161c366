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
    assert list(rows) == ["4 KB"]
    assert rows["4 KB"] - {"hora_ucx"} == {"hora", "hora_bf16", "gloo", "mpi"}  # over UCX too, where that is installed
    for part in ("Gloo /", "Open MPI /", "p99", "Fastest between these hosts: ", "mpirun started the workers"):
        assert part in said, said


def test_train(two_hosts: Cluster, ssh: Sshd, tmp_path: Path) -> None:
    """All contenders in the same processes, and the floor that the link sets, which nobody is faster than.

    The cap bounds everything from one side only: on a loaded machine the link carries less and a step takes longer.
    """
    with two_hosts["h1"].limited("100mbit"), two_hosts["h2"].limited("100mbit"):
        said, rows = measured(two_hosts, tmp_path, "train", "-H", "h1:1,h2:1", "--models", "mlp", "--rounds", "1")
    everybody = {"limit", "in_step", "hora", "hora_bf16", "ddp", "ddp_tuned", "ddp_bf16"}
    assert list(rows.values()) == [everybody]
    found = json.loads((tmp_path / "figures.json").read_text())
    assert 0 < found["link_mbit_per_s"] < 101
    [row] = found["rows"]
    floor, half = row["floors_us"]["float32"], row["floors_us"]["bf16"]
    assert floor > 1e6 * 4 * (784 * 1024 + 1024 * 1024) / 12.5e6  # its weights alone, at 100 Mbit/s
    assert half < 0.6 * floor
    least = 0.9 * 1e6 * 4 * (784 * 1024 + 1024 * 1024) / 12.5e6  # the cap lets 256 KB of 7 MB through at once
    for key in ("hora", "ddp", "ddp_tuned"):
        assert row["cells"][key]["median_us"] > least
    for part in ("in step", "floor, bf16", "Hora / in step", "p99", "The link between the hosts carries"):
        assert part in said, said


def test_launch(two_hosts: Cluster, ssh: Sshd, tmp_path: Path) -> None:
    _, rows = measured(two_hosts, tmp_path, "launch", "-H", "h1:1,h2:1", "--rounds", "1")
    assert list(rows.values()) == [{"hora", "mpi"}]
