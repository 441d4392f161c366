"""Four workers on two hosts give the right sums and train, however they are started."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

import pytest
from tests.cluster.hosts import Cluster, python
from tests.cluster.mpich import mpich_bin
from tests.cluster.ray import RayCluster
from tests.cluster.slurm import Slurm
from tests.cluster.sshd import Sshd
from tests.cluster.watch import WORKER, Watched, assert_right, hora_run, words_in
from tests.launch.jobs import hora, run_hora

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

BIN = Path(sys.executable).parent
JOB_S = 100.0  # a tenth of it on a quiet machine
RIGHT = [sys.executable, str(WORKER), "right"]
TWO_BY_TWO = ("--nodes=2", "--ntasks-per-node=2")
OURS = "10.77.0.0/24"  # Open MPI has to be told which network to use, or it takes docker0


@pytest.fixture(autouse=True)
def nothing_left(two_hosts: Cluster) -> None:
    """Whatever is started here, nothing of it is left on any host."""
    yield
    two_hosts.wait_until_gone(str(WORKER))


@pytest.mark.parametrize("where", ["login", "h1"])
def test_ssh(two_hosts: Cluster, ssh: Sshd, tmp_path: Path, where: str) -> None:
    done = two_hosts[where].run(hora_run("-np", "4", "-H", "h1:2,h2:2", *RIGHT), JOB_S, cwd=tmp_path)
    assert_right(done.stdout)
    assert done.returncode == 0, done.stdout


@pytest.mark.long
@pytest.mark.parametrize("framework", ["tensorflow", "jax", "keras-tensorflow", "keras-torch", "keras-jax"])
def test_other_frameworks(two_hosts: Cluster, ssh: Sshd, tmp_path: Path, framework: str) -> None:
    program = str(WORKER.with_name("frameworks.py"))
    job = hora_run("-H", "h1:2,h2:2", sys.executable, program, framework)
    done = two_hosts["login"].run(job, JOB_S, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(f"{framework} is right") == 4
    two_hosts.wait_until_gone(program)


def test_ssh_with_a_host_file_and_uneven_hosts(two_hosts: Cluster, ssh: Sshd, tmp_path: Path) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text("# mine\n\nh1 slots=2\nh2\n")
    done = two_hosts.login.run(hora_run("--hostfile", hostfile, *RIGHT), JOB_S, cwd=tmp_path)
    assert_right(done.stdout, ("h1", "h1", "h2"))
    assert done.returncode == 0, done.stdout


def test_all_workers_on_one_other_host(two_hosts: Cluster, ssh: Sshd, tmp_path: Path) -> None:
    """The hub is elsewhere and cannot hand out memory; the workers make their own, and are as fast as at home."""
    done = two_hosts.login.run(hora_run("-H", "h2:2", *RIGHT), JOB_S, cwd=tmp_path)
    assert_right(done.stdout, ("h2", "h2"))
    assert done.returncode == 0, done.stdout


def test_flat_gloo(two_hosts: Cluster, ssh: Sshd, tmp_path: Path) -> None:
    command = hora_run("-np", "4", "-H", "h1:2,h2:2", "--gloo", *RIGHT)
    done = two_hosts["h1"].run(command, JOB_S, cwd=tmp_path)
    assert_right(done.stdout)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("interfaces", [["--network-interfaces", "eth0"], []], ids=["eth0", "unasked"])
def test_mpi_transport(two_hosts: Cluster, ssh: Sshd, tmp_path: Path, interfaces: list[str]) -> None:
    command = hora_run("-np", "4", "-H", "h1:2,h2:2", "--on", "mpi", *interfaces, *RIGHT)
    done = two_hosts["h1"].run(command, JOB_S, cwd=tmp_path, env={"HORA_TRANSPORT": "mpi"})
    assert_right(done.stdout)
    assert done.returncode == 0, done.stdout


def test_hora_run_in_a_batch_script(slurm: Slurm) -> None:
    job = slurm.sbatch(f"#!/bin/sh\n{' '.join(hora_run(*RIGHT))}\n", *TWO_BY_TWO)
    output = job.wait(JOB_S)
    assert_right(output)
    assert "Slurm allocation: 4 workers on h1:2,h2:2, started by srun" in output
    assert job.exit_code == 0


@pytest.mark.long
def test_hora_run_in_salloc(slurm: Slurm) -> None:
    assert_right(slurm.salloc(TWO_BY_TWO, hora_run(*RIGHT), JOB_S))


def test_srun(slurm: Slurm) -> None:
    job = slurm.sbatch(f"#!/bin/sh\nsrun {' '.join(RIGHT)}\n", *TWO_BY_TWO)
    assert_right(job.wait(JOB_S))
    assert job.exit_code == 0


def test_srun_of_hora_train(slurm: Slurm, tmp_path: Path) -> None:
    """A workload that srun starts four times learns what one process learns that emulates four workers."""
    assert run_hora("data", "make", "digits", "--samples", "400", "--to", tmp_path / "digits").returncode == 0
    train = ["train", "mnist", "--network", "horovod", "--data", tmp_path / "digits", "--batch", "20", "--epochs", "1"]
    here, there = ([*train, "--out", tmp_path / name, "--json", tmp_path / f"{name}.json"] for name in ("one", "srun"))
    job = slurm.sbatch(f"#!/bin/sh\nsrun {' '.join(map(str, hora(*there)))}\n", *TWO_BY_TWO)
    done = run_hora(*here, "--emulate-workers", "4", timeout_s=JOB_S)
    assert done.returncode == 0, done.stderr
    output = job.wait(JOB_S)
    assert job.exit_code == 0, output
    one, four = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("one", "srun"))
    assert (four["workers"], four["steps"], four["samples"]) == (one["emulated_workers"], 5, 400) == (4, 5, 400)
    assert four["val_loss"] == pytest.approx(one["val_loss"], rel=1e-4)


def test_open_mpi(two_hosts: Cluster, ssh: Sshd, tmp_path: Path) -> None:
    mpirun = [BIN / "mpirun", "--allow-run-as-root", "--prtemca", "if_include", OURS, "-H", "h1:2,h2:2", "-np", "4"]
    done = two_hosts["h1"].run([*mpirun, *RIGHT], JOB_S, cwd=tmp_path)
    assert_right(done.stdout)
    assert done.returncode == 0, done.stdout


def test_mpich(two_hosts: Cluster, ssh: Sshd, tmp_path: Path) -> None:
    bin = mpich_bin()
    mpiexec = [bin / "mpiexec", "-launcher", "ssh", "-iface", "eth0", "-hosts", "h1:2,h2:2", "-np", "4"]
    done = two_hosts["h1"].run([*mpiexec, bin / "python", WORKER, "right"], JOB_S, cwd=tmp_path)
    assert_right(done.stdout)
    assert done.returncode == 0, done.stdout


def test_torchrun(two_hosts: Cluster, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        nodes = []
        for rank, host in enumerate(two_hosts.hosts):
            options = ["--nnodes=2", "--nproc-per-node=2", f"--node-rank={rank}", "--master-addr=h1"]
            command = python("-m", "torch.distributed.run", *options, "--master-port=29500", WORKER, "right")
            nodes.append(stack.enter_context(Watched(host, command, tmp_path, GLOO_SOCKET_IFNAME="eth0")))
        codes = [node.wait(JOB_S) for node in nodes]
        output = "".join(node.output for node in nodes)
    assert_right(output)
    assert codes == [0, 0], output


def test_ray(two_hosts: Cluster, ray_cluster: RayCluster, tmp_path: Path) -> None:
    done = two_hosts["h1"].run(hora_run("-np", "4", "--on", "ray", *RIGHT), JOB_S, cwd=tmp_path, env=ray_cluster.env)
    first = next((word["host"] for word in words_in(done.stdout) if word["rank"] == 0), "")  # Ray has no order of nodes
    assert_right(done.stdout, ("h2", "h2", "h1", "h1") if first == "h2" else ("h1", "h1", "h2", "h2"))
    assert done.returncode == 0, done.stdout
