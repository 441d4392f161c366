"""What goes wrong on two hosts is named (which rank, which host, what happened) in time, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.hosts import Cluster, Host
from tests.cluster.slurm import Slurm
from tests.cluster.sshd import Sshd
from tests.cluster.watch import WORKER, Watched, hora_run, words_in
from tests.launch.jobs import wait_until

from hora.transport.fabric import library

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

LOOP = [WORKER, "loop"]
DEATH_S = 5.0  # from a death to the exception on every other rank; on a quiet machine less than one
HOST_TIMEOUT_S = 4.0  # how long a host may be silent, here
END_S = 30.0  # for the job to end after that: SIGTERM, a few seconds, SIGKILL


@pytest.fixture(autouse=True)
def mended(two_hosts: Cluster) -> Iterator[None]:
    """Whatever a test does to the cluster, the next one finds it whole and empty."""
    yield
    for host in two_hosts.hosts:
        host.mend()
    two_hosts.wait_until_gone(str(WORKER))


def started(cluster: Cluster, place: Path, megabytes: float = 0.5, where: str = "login", **environment: str) -> Watched:
    environment = {"HORA_HOST_TIMEOUT": str(HOST_TIMEOUT_S), **environment}
    command = hora_run("-np", "4", "-H", "h1:2,h2:2", *LOOP, str(megabytes))
    return Watched(cluster[where], command, place, **environment)


def survivors_name(job: Watched, ranks: set[int], said: str, since: float, within_s: float) -> None:
    """Each of ``ranks`` has raised PeerLostError, with ``said`` in it, in time."""
    raised = job.raised()
    assert set(raised) >= ranks, job.output
    for rank in ranks:
        assert raised[rank]["raised"] == "PeerLostError", job.output
        assert said in raised[rank]["text"], job.output
        assert raised[rank]["at"] - since < within_s, (raised[rank]["at"] - since, job.output)


def agent_on(host: Host) -> int:
    """The agent's pid, as this machine sees it."""
    [agent] = [pid for pid in host.pids().values() if "hora.launch.host.agent" in _command(pid)]
    return agent


def over(transport: str) -> dict[str, str]:
    """The environment that chooses it."""
    if transport == "ucx" and not library():
        pytest.skip("UCX is not installed")
    return {"HORA_TRANSPORT": transport, "UCX_TLS": "tcp"}


@pytest.mark.parametrize(("victim", "transport"), [(1, "tcp"), (3, "tcp"), (2, "ucx"), (3, "ucx")])
def test_a_killed_worker(two_hosts: Cluster, ssh: Sshd, tmp_path: Path, victim: int, transport: str) -> None:
    with started(two_hosts, tmp_path, **over(transport)) as job:
        words = job.ready()
        host, pid = words[victim]["host"], words[victim]["pid"]
        since = time.monotonic()
        two_hosts[host].signal(pid, signal.SIGKILL)
        assert job.wait(END_S) == 128 + signal.SIGKILL, job.output
        named = f"rank {victim} (host {host}, pid {pid}) died: signal 9 (SIGKILL)"
        survivors_name(job, {0, 1, 2, 3} - {victim}, named, since, DEATH_S)
        assert f"rank {victim} failed first" in job.output and f"host {host}, pid {pid}" in job.output
    _gone(two_hosts, words)


def test_a_killed_agent(two_hosts: Cluster, ssh: Sshd, tmp_path: Path) -> None:
    with started(two_hosts, tmp_path) as job:
        words = job.ready()
        h2 = two_hosts["h2"]
        since = time.monotonic()
        os.kill(agent_on(h2), signal.SIGKILL)
        assert job.wait(END_S) == 3, job.output
        survivors_name(job, {0, 1}, "host h2", since, 5.0)
        assert "host h2 was lost" in job.output and "ranks 2, 3 ran there" in job.output
    _gone(two_hosts, words)


def test_a_killed_launcher(two_hosts: Cluster, ssh: Sshd, tmp_path: Path) -> None:
    with started(two_hosts, tmp_path) as job:
        words = job.ready()
        job.signal(signal.SIGKILL)
        assert job.wait(END_S) == -signal.SIGKILL
        _gone(two_hosts, words)


def test_an_interrupted_launcher(two_hosts: Cluster, ssh: Sshd, tmp_path: Path) -> None:
    with started(two_hosts, tmp_path) as job:
        words = job.ready()
        job.signal(signal.SIGTERM)
        assert job.wait(END_S) == 128 + signal.SIGTERM
        assert "stopped by SIGTERM; all workers have ended" in job.output
        _gone(two_hosts, words)


@pytest.mark.parametrize(
    ("where", "transport"), [pytest.param("login", "tcp", marks=pytest.mark.long), ("h1", "tcp"), ("h1", "ucx")]
)
def test_a_cut_link_during_a_large_allreduce(
    two_hosts: Cluster, ssh: Sshd, tmp_path: Path, where: str, transport: str
) -> None:
    h2, chosen = two_hosts["h2"], over(transport)
    with h2.limited("400mbit"), started(two_hosts, tmp_path, 40, where, **chosen) as job:  # almost a second each
        words = job.ready()
        since = time.monotonic()
        h2.cut()
        assert job.wait(HOST_TIMEOUT_S + END_S) == 3, job.output
        survivors_name(job, {0, 1}, "h2", since, HOST_TIMEOUT_S + 5.0)
        assert "host h2 was lost" in job.output and "has not answered" in job.output, job.output
        assert "ranks 2, 3 ran there" in job.output
        _gone(two_hosts, words)  # on h2 too, though nobody can tell it anything


def test_a_stopped_worker(two_hosts: Cluster, ssh: Sshd, tmp_path: Path) -> None:
    with started(two_hosts, tmp_path, HORA_STALL_SHUTDOWN_TIME_SECONDS="4") as job:
        words = job.ready()
        since = time.monotonic()
        two_hosts["h2"].signal(words[3]["pid"], signal.SIGSTOP)
        assert job.wait(END_S) != 0, job.output
        raised = job.raised()
        assert set(raised) == {0, 1, 2}, job.output
        for word in raised.values():
            assert "rank 3" in word["text"] and word["at"] - since < 10.0, (word["at"] - since, job.output)
    _gone(two_hosts, words)


def test_a_stopped_host(two_hosts: Cluster, ssh: Sshd, tmp_path: Path) -> None:
    """Every process of the host stands still, as when it swaps itself to death: it is lost, and named."""
    h2 = two_hosts["h2"]
    with started(two_hosts, tmp_path) as job:
        words = job.ready()
        frozen = [pid for pid in h2.pids().values() if words[2]["job"] in _environment(pid)]
        frozen.append(agent_on(h2))
        since = time.monotonic()
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        try:
            assert job.wait(HOST_TIMEOUT_S + END_S) == 3, job.output
            survivors_name(job, {0, 1}, "h2", since, HOST_TIMEOUT_S + 5.0)
            assert "host h2 was lost" in job.output and "has not answered" in job.output, job.output
        finally:
            for pid in frozen:
                _send(pid, signal.SIGCONT)
    _gone(two_hosts, words)  # what wakes up finds itself alone, and ends


def test_a_worker_that_fails_on_another_host(two_hosts: Cluster, ssh: Sshd, tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text(
        "import sys, hora.torch as hvd\nhvd.init()\nif hvd.rank() == 2: sys.exit('out of luck')\nhvd.barrier()\n"
    )
    done = two_hosts.login.run(hora_run("-np", "4", "-H", "h1:2,h2:2", script), 100, cwd=tmp_path)
    assert done.returncode == 1, done.stdout
    assert "rank 2 failed first" in done.stdout and "host h2" in done.stdout and "out of luck" in done.stdout
    two_hosts.wait_until_gone(str(script))


# ---- Slurm ----


def in_slurm(slurm: Slurm, command: list[str]) -> tuple[Any, dict[int, dict[str, Any]]]:
    script = f"#!/bin/sh\nexport HORA_HOST_TIMEOUT={HOST_TIMEOUT_S}\nexec {' '.join(command)}\n"
    job = slurm.sbatch(script, "--nodes=2", "--ntasks-per-node=2", "--no-requeue")

    def ready() -> dict[int, dict[str, Any]]:
        return {word["ready"]: word for word in words_in(job.output) if "ready" in word}

    try:
        wait_until(lambda: len(ready()) == 4 or job.state not in ("PENDING", "RUNNING"), 90.0, "four workers")
        assert len(ready()) == 4, f"{job.state}: {job.output}"
    except AssertionError:
        job.cancel()
        raise
    return job, ready()


def test_a_killed_slurmd(two_hosts: Cluster, slurm: Slurm) -> None:
    """Slurm gives the node up and ends the job; on the node, where nobody is left to do that, Hora does."""
    job, words = in_slurm(slurm, hora_run(*LOOP, "0.5"))
    try:
        slurm.kill_slurmd(two_hosts["h2"])
        output = job.wait(60.0)
        assert "NODE FAILURE" in output or "host h2 was lost" in output, output
        assert "stopped by SIGTERM" in output or "host h2 was lost" in output, output
        _gone(two_hosts, words)
    finally:
        job.cancel()
        slurm.mend()


def test_a_killed_worker_in_slurm(two_hosts: Cluster, slurm: Slurm) -> None:
    job, words = in_slurm(slurm, hora_run(*LOOP, "0.5"))
    try:
        two_hosts["h2"].signal(words[3]["pid"], signal.SIGKILL)
        output = job.wait(END_S)
        assert f"rank 3 (host h2, pid {words[3]['pid']}) died: signal 9 (SIGKILL)" in output
        assert "rank 3 failed first" in output and job.exit_code == 128 + signal.SIGKILL
        _gone(two_hosts, words)
    finally:
        job.cancel()


def test_a_cancelled_job(two_hosts: Cluster, slurm: Slurm) -> None:
    job, words = in_slurm(slurm, hora_run(*LOOP, "0.5"))
    job.cancel()
    job.wait(END_S)
    _gone(two_hosts, words)


# ---- looking ----


def _gone(cluster: Cluster, words: dict[int, dict[str, Any]]) -> None:
    name, _, _ = words[0]["job"].partition(".")  # each host has a number after it
    cluster.wait_until_gone(f"HORA_JOB={name}")
    cluster.wait_until_gone(str(WORKER))


def _command(pid: int) -> str:
    return _read(pid, "cmdline")


def _environment(pid: int) -> str:
    return _read(pid, "environ")


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
