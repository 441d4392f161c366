"""Workers that something else than Hora started on two hosts meet without a directory that both see.

Each host has a home directory of its own (in its own ``/tmp``), so that the file by which workers find each other
elsewhere is never seen by the other host.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.hosts import Cluster, Host, python
from tests.cluster.mpich import mpich_bin
from tests.cluster.slurm import Slurm
from tests.cluster.sshd import Sshd
from tests.cluster.test_strangers import listeners
from tests.cluster.watch import WORKER, Watched, assert_right

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

BIN = Path(sys.executable).parent
JOB_S = 100.0
RIGHT = [sys.executable, str(WORKER), "right"]
OWN = "/tmp/own-home"  # on every host another one
OURS = "10.77.0.0/24"


@pytest.fixture(autouse=True)
def homes(two_hosts: Cluster) -> Iterator[None]:
    for host in two_hosts:
        host.run(["mkdir", "-p", OWN], check=True)
    yield
    two_hosts.wait_until_gone(str(WORKER))
    for host in two_hosts:
        left = host.run(["find", OWN, "-name", "*.hub"]).stdout
        host.run(["rm", "-rf", OWN])
        assert left == ""


def test_srun(two_hosts: Cluster, slurm: Slurm) -> None:
    """By munge: the nodes are named in the step's environment."""
    job = slurm.sbatch(f"#!/bin/sh\nexport HOME={OWN}\nsrun {' '.join(RIGHT)}\n", "--nodes=2", "--ntasks-per-node=2")
    assert_right(job.wait(JOB_S))
    assert job.exit_code == 0


def test_open_mpi(two_hosts: Cluster, ssh: Sshd, tmp_path: Path) -> None:
    """By PMIx; whether mpi4py is there does not matter."""
    mpirun = [BIN / "mpirun", "--allow-run-as-root", "--prtemca", "if_include", OURS, "-H", "h1:2,h2:2", "-np", "4"]
    done = two_hosts["h1"].run([*mpirun, "env", f"HOME={OWN}", *RIGHT], JOB_S, cwd=tmp_path)
    assert_right(done.stdout)
    assert done.returncode == 0, done.stdout


def test_open_mpi_as_the_transport(two_hosts: Cluster, ssh: Sshd, tmp_path: Path) -> None:
    """What was asked of PMIx does not get in the way of MPI itself."""
    mpirun = [
        BIN / "mpirun", "--allow-run-as-root", "--prtemca", "if_include", OURS, "--mca", "btl_tcp_if_include", OURS,
        "-H", "h1:1,h2:1", "-np", "2",
    ]  # fmt: skip
    command = [*mpirun, "env", f"HOME={OWN}", "HORA_TRANSPORT=mpi", *RIGHT]
    done = two_hosts["h1"].run(command, JOB_S, cwd=tmp_path)
    assert_right(done.stdout, ("h1", "h2"))
    assert done.returncode == 0, done.stdout


def test_mpich(two_hosts: Cluster, ssh: Sshd, tmp_path: Path) -> None:
    """By a name published with mpiexec."""
    bin = mpich_bin()
    mpiexec = [bin / "mpiexec", "-launcher", "ssh", "-iface", "eth0", "-hosts", "h1:2,h2:2", "-np", "4"]
    command = [*mpiexec, "env", f"HOME={OWN}", bin / "python", WORKER, "right"]
    done = two_hosts["h1"].run(command, JOB_S, cwd=tmp_path)
    assert_right(done.stdout)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("launcher", ["torchrun", "by hand"])
def test_master_address(two_hosts: Cluster, tmp_path: Path, launcher: str) -> None:
    """By torch's store: torchrun's, or that of rank 0 where MASTER_ADDR and MASTER_PORT were set by hand."""
    workers = []
    with contextlib.ExitStack() as stack:
        for rank, host in enumerate(two_hosts.hosts):
            options = ["--nnodes=2", "--nproc-per-node=1", f"--node-rank={rank}", "--master-addr=h1"]
            command = python("-m", "torch.distributed.run", *options, "--master-port=29501", WORKER, "right")
            environment = {"HOME": OWN, "GLOO_SOCKET_IFNAME": "eth0"}
            if launcher == "by hand":
                command = RIGHT
                environment |= {"MASTER_ADDR": "h1", "MASTER_PORT": "29502", "RANK": str(rank), "WORLD_SIZE": "2"}
            workers.append(stack.enter_context(Watched(host, command, tmp_path, **environment)))
        codes = [worker.wait(JOB_S) for worker in workers]
        output = "".join(worker.output for worker in workers)
    assert_right(output, ("h1", "h2"))
    assert codes == [0, 0], output


def test_who_is_missing_is_named_in_time(two_hosts: Cluster, slurm: Slurm, tmp_path: Path) -> None:
    """A rank that never calls init(), and the lowest one that does not."""
    for absent, sign in (("1", "rank 1 did not call init() within 5 s"), ("0", "did not hear from rank 0 within 5 s")):
        script = tmp_path / f"absent{absent}.py"
        script.write_text(
            "import os, time\n"
            f"if os.environ['SLURM_PROCID'] == '{absent}':\n"
            f"    deadline = time.monotonic() + 60\n"
            f"    while not os.path.exists({str(tmp_path / ('told' + absent))!r}) and time.monotonic() < deadline:\n"
            "        time.sleep(0.1)\n"
            "else:\n"
            "    import hora.torch as hvd\n"
            "    try:\n"
            "        hvd.init()\n"
            "    finally:\n"
            f"        open({str(tmp_path / ('told' + absent))!r}, 'w').close()\n"
        )
        lines = f"#!/bin/sh\nexport HOME={OWN} HORA_START_TIMEOUT=3\nsrun {sys.executable} {script}\n"
        job = slurm.sbatch(lines, "--nodes=2", "--ntasks-per-node=1")
        said = job.wait(JOB_S)
        assert sign in said and "StallError" in said, said
        if absent == "0":
            assert "by munge: nothing" in said and f"in the directory {OWN}/.cache/hora: nothing" in said


def test_the_hub_listens_on_one_address_only(two_hosts: Cluster, tmp_path: Path) -> None:
    """While rank 0 waits for rank 1, whom nobody started: its ports are those of its address, and of torch's store."""
    host, before = two_hosts["h1"], listeners(two_hosts["h1"])

    def ours(host: Host) -> set[tuple[str, int]]:
        return {place for place in listeners(host) - before if place[1] != 29503}

    environment = {"HOME": OWN, "MASTER_ADDR": "h1", "MASTER_PORT": "29503", "RANK": "0", "WORLD_SIZE": "2"}
    environment["HORA_START_TIMEOUT"] = "5"
    with Watched(host, RIGHT, tmp_path, **environment) as worker:
        worker.wait_for(lambda: len(ours(host)) == 1, "rank 0 to listen", JOB_S)
        assert {address for address, _ in ours(host)} == {host.address}
        assert worker.wait(JOB_S) != 0 and "rank 1 did not call init()" in worker.output, worker.output
