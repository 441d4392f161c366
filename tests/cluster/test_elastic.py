"""Elastic jobs on hosts of their own: workers and hosts die, stop, are cut off and come, and the training goes on.

Every job audits its samples: each is taken once an epoch, whatever happened. ``long`` are those that other tests cover
in part.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.cluster.hosts import ROOT, Cluster, Host
from tests.cluster.ray import RayCluster
from tests.cluster.slurm import Job, Slurm
from tests.cluster.sshd import Sshd
from tests.cluster.test_submit import submit
from tests.cluster.watch import START_S, Watched, hora_run
from tests.launch.elastic import worker
from tests.launch.jobs import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

WORKER = Path(worker.__file__)
HOST_TIMEOUT_S = 4.0
END_S = 60.0


@pytest.fixture(autouse=True)
def mended(two_hosts: Cluster) -> Iterator[None]:
    """Whatever a test does to the cluster, the next one finds it whole and empty."""
    yield
    for host in two_hosts.hosts:
        host.mend()
        host.isolate(False)
    two_hosts.wait_until_gone(str(WORKER))


class Elastic:
    """A job of ``worker.py until:FILE``; ``output`` gives what it has printed so far."""

    def __init__(self, place: Path, output: Callable[[], str], alive: Callable[[], bool]) -> None:
        self.stop_file, self._output, self._alive = stop_file(place), output, alive
        self.number = 0  # Slurm's, of the job

    @property
    def output(self) -> str:
        return self._output()

    def until(self, pattern: str, count: int = 1, deadline_s: float = START_S) -> list[re.Match[str]]:
        """Wait until so many lines match."""

        def met() -> bool:
            if len(re.findall(pattern, self.output)) >= count:
                return True
            assert self._alive(), f"the job ended before {pattern!r}:\n{self.output}"
            return False

        try:
            wait_until(met, deadline_s, f"{count} of {pattern!r}", every_s=0.05)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.output}") from None
        return [*re.finditer(pattern, self.output)]

    def workers(self) -> dict[int, tuple[str, int]]:
        """Where each worker ran, and its pid there."""
        return {int(m[2]): (m[3], int(m[1])) for m in re.finditer(r"up (\d+) worker (\d+) on (\S+)", self.output)}

    def members(self, size: int, after: int = 0) -> list[int]:
        """Wait for a generation of so many, later than ``after``; its workers by rank."""
        found: list[int] = []

        def met() -> bool:
            nonlocal found
            seen: dict[int, dict[int, int]] = {}
            for m in re.finditer(rf"\[(\d+)\]<stdout>:generation (\d+) rank (\d+) of {size} step", self.output):
                if int(m[2]) > after:
                    seen.setdefault(int(m[2]), {})[int(m[3])] = int(m[1])
            whole = [ranks for ranks in seen.values() if len(ranks) == size]
            found = [whole[-1][rank] for rank in range(size)] if whole else []
            assert found or self._alive(), f"the job ended before there was a generation of {size}:\n{self.output}"
            return bool(found)

        try:
            wait_until(met, START_S, f"a generation of {size} after {after}", every_s=0.05)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.output}") from None
        return found

    @property
    def generation(self) -> int:
        return max((int(n) for n in re.findall(r"generation (\d+) rank", self.output)), default=0)

    def kill(self, cluster: Cluster, worker: int, number: signal.Signals = signal.SIGKILL) -> None:
        host, pid = self.workers()[worker]
        cluster[host].signal(pid, number)

    def finish(self) -> None:
        """Let it come to its end; the caller waits for that."""
        self.stop_file.touch()

    def check(self) -> None:
        ends = re.findall(r"finished rank \d+ exact (\w+) weights (\d+) of (\d+)", self.output)
        assert ends and all(exact == "True" and had == wanted for exact, had, wanted in ends), self.output
        assert "Traceback" not in self.output, self.output


def stop_file(place: Path) -> Path:
    return place / "stop"


def program(place: Path) -> list[str]:
    return [sys.executable, str(WORKER), "3", f"until:{stop_file(place)}"]


class OverSsh:
    """One by ssh, from ``login`` or another host. Use it with ``with``."""

    def __init__(self, cluster: Cluster, place: Path, *arguments: str, where: str = "login", **env: str) -> None:
        variables = {"HORA_HOST_TIMEOUT": str(HOST_TIMEOUT_S), **env}
        self._watched = Watched(cluster[where], hora_run(*arguments, *program(place)), place, **variables)

    def __enter__(self) -> Elastic:
        self.job = Elastic(Path(self._watched_place()), lambda: self._watched.output, self._alive)
        return self.job

    def _watched_place(self) -> Path:
        return self._watched._path.parent

    def _alive(self) -> bool:
        return self._watched.process.poll() is None

    def __exit__(self, kind: object, *unused: object) -> None:
        try:
            if kind is None:
                self.job.finish()
                assert self._watched.wait(END_S) == 0, self.job.output
                self.job.check()
        finally:
            self._watched.__exit__()


def everything_of_the_job(host: Host) -> list[int]:
    """Its agents, guardians and workers, as this machine sees them."""
    found = []
    for pid in host.pids().values():
        try:
            read = [Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ")]
        except OSError:
            continue
        if b"hora.launch.host.agent" in read[0] or b"HORA_JOB=" in read[1] or str(WORKER).encode() in read[0]:
            found.append(pid)
    return found


def send_all(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.long), 3])
def test_any_rank_may_be_killed(two_hosts: Cluster, ssh: Sshd, tmp_path: Path, rank: int) -> None:
    with OverSsh(two_hosts, tmp_path, "--min-np", "1", "--max-np", "4", "-H", "h1:2,h2:2") as job:
        members = job.members(4)
        job.kill(two_hosts, members[rank])
        survivors = job.members(3)
        assert set(survivors) == set(members) - {members[rank]}
        job.members(4, job.generation)  # and a replacement has come


def test_a_host_that_dies(two_hosts: Cluster, ssh: Sshd, tmp_path: Path) -> None:
    with OverSsh(two_hosts, tmp_path, "--min-np", "1", "--max-np", "4", "-H", "h1:2,h2:2") as job:
        job.members(4)
        send_all(everything_of_the_job(two_hosts["h1"]), signal.SIGKILL)  # rank 0's
        job.members(2)
        job.until("host h1 was lost")
        job.members(4, job.generation)  # it is there again, and is used again


@pytest.mark.parametrize("where", ["login", pytest.param("h1", marks=pytest.mark.long)])
def test_a_cut_link(two_hosts: Cluster, ssh: Sshd, tmp_path: Path, where: str) -> None:
    """The half without the launcher ends; the other goes on; what is mended joins again."""
    with OverSsh(two_hosts, tmp_path, "--min-np", "1", "--max-np", "4", "-H", "h1:2,h2:2", where=where) as job:
        job.members(4)
        cut_off = everything_of_the_job(two_hosts["h2"])
        two_hosts["h2"].cut()
        assert {job.workers()[w][0] for w in job.members(2)} == {"h1"}
        gone = lambda: not {*cut_off} & {*everything_of_the_job(two_hosts["h2"])}  # noqa: E731
        wait_until(gone, END_S, "h2's half to end")
        two_hosts["h2"].mend()
        job.members(4, job.generation)


def test_a_stopped_host(two_hosts: Cluster, ssh: Sshd, tmp_path: Path) -> None:
    with OverSsh(two_hosts, tmp_path, "--min-np", "1", "--max-np", "4", "-H", "h1:2,h2:2") as job:
        job.members(4)
        stopped = everything_of_the_job(two_hosts["h2"])
        send_all(stopped, signal.SIGSTOP)
        try:
            assert {job.workers()[w][0] for w in job.members(2)} == {"h1"}
        finally:
            send_all(stopped, signal.SIGCONT)
        job.members(4, job.generation)
        gone = lambda: not {*stopped} & {*everything_of_the_job(two_hosts["h2"])}  # noqa: E731
        wait_until(gone, END_S, "what was given up to end")


def test_a_host_that_comes_and_one_that_goes(two_hosts: Cluster, ssh: Sshd, tmp_path: Path) -> None:
    listed = tmp_path / "hosts"
    listed.write_text("h1:2\n")
    script = ("--host-discovery-script", f"cat {listed}")
    with OverSsh(two_hosts, tmp_path, "--min-np", "1", "--max-np", "4", *script) as job:
        job.members(2)
        listed.write_text("h1:2\nh2:2\n")
        job.members(4)
        listed.write_text("h2:2\n")  # rank 0's host is to go
        assert {job.workers()[w][0] for w in job.members(2, job.generation)} == {"h2"}
        wait_until(lambda: not everything_of_the_job(two_hosts["h1"]), END_S, "h1 to be left")


@pytest.mark.long
def test_hosts_that_reach_the_launcher_but_not_each_other(two_hosts: Cluster, ssh: Sshd, tmp_path: Path) -> None:
    """The launcher decides which of them goes on."""
    with OverSsh(two_hosts, tmp_path, "--min-np", "1", "--max-np", "4", "-H", "h1:2,h2:2") as job:
        job.members(4)
        for host in two_hosts.hosts:
            host.isolate()
        try:
            first = job.members(2)
            assert len({job.workers()[w][0] for w in first}) == 1
        finally:
            for host in two_hosts.hosts:
                host.isolate(False)
        job.members(4, job.generation)


# ---- Slurm ----


def allocated(slurm: Slurm, place: Path, *options: str) -> Job:
    """A job script that was written by hand."""
    command = [*hora_run("--min-np", "1", "--max-np", "4"), *program(place)]
    script = f"#!/bin/sh\nexport HORA_HOST_TIMEOUT={HOST_TIMEOUT_S}\nexec {' '.join(command)}\n"
    return slurm.sbatch(script, "--no-requeue", "--no-kill", *options)


class InSlurm:
    """One in an allocation. Use it with ``with``."""

    def __init__(self, batch: Job, place: Path) -> None:
        self.batch, self._place = batch, place

    def __enter__(self) -> Elastic:
        self.job = Elastic(self._place, lambda: self.batch.output, lambda: True)
        self.job.number = self.batch.number
        return self.job

    def __exit__(self, kind: object, *unused: object) -> None:
        try:
            if kind is None:
                self.job.finish()
                self.batch.wait(END_S)
                assert self.batch.exit_code == 0, self.job.output
                self.job.check()
        finally:
            self.batch.cancel()


def test_a_killed_worker_in_slurm(two_hosts: Cluster, slurm: Slurm, tmp_path: Path) -> None:
    with InSlurm(allocated(slurm, tmp_path, "--nodes=2", "--ntasks-per-node=2"), tmp_path) as job:
        members = job.members(4)
        job.kill(two_hosts, members[0])
        job.members(3)
        job.members(4, job.generation)


def test_a_node_that_dies_in_slurm(two_hosts: Cluster, slurm: Slurm, tmp_path: Path) -> None:
    """All processes of Slurm and of the job on it end; with --no-kill the job keeps what is left."""
    h2 = two_hosts["h2"]
    try:
        with InSlurm(allocated(slurm, tmp_path, "--nodes=2", "--ntasks-per-node=2"), tmp_path) as job:
            job.members(4)
            steps = [pid for pid in h2.pids().values() if b"slurmstepd" in Path(f"/proc/{pid}/cmdline").read_bytes()]
            everything = [*everything_of_the_job(h2), *steps]
            slurm.kill_slurmd(h2)
            send_all(everything, signal.SIGKILL)
            assert {job.workers()[w][0] for w in job.members(2)} == {"h1"}
    finally:
        slurm.mend()


def test_a_job_that_grows_in_slurm(two_hosts: Cluster, slurm: Slurm, tmp_path: Path) -> None:
    with InSlurm(allocated(slurm, tmp_path, "--nodes=1", "--ntasks-per-node=2", "--nodelist=h1"), tmp_path) as job:
        job.members(2)
        give = f"scontrol update JobId=$SLURM_JOB_ID NumNodes=0; scontrol update JobId={job.number} NumNodes=ALL"
        more = ["--nodes=1", "--ntasks-per-node=2", "--nodelist=h2", f"--dependency=expand:{job.number}"]
        said = slurm.salloc(more, ["sh", "-c", f"cd {tmp_path} && {give}"], START_S)
        assert "rror" not in said, said
        job.members(4)


@pytest.mark.long
def test_a_submitted_elastic_job_goes_on(two_hosts: Cluster, slurm: Slurm, tmp_path: Path) -> None:
    asked = ("--elastic", "1:4", "--tasks-per-node", "2", "--time", "5m")
    [batch] = submit(slurm, tmp_path, *asked, *program(tmp_path))
    with InSlurm(batch, tmp_path) as job:
        members = job.members(4)
        job.kill(two_hosts, members[3])
        job.members(4, job.generation)


def test_a_host_without_hora_is_told_of_and_the_others_go_on(two_hosts: Cluster, ssh: Sshd, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    two_hosts["h2"].bind(tmp_path / "empty", str(ROOT / "src" / "hora"))
    try:
        with OverSsh(two_hosts, tmp_path, "--min-np", "1", "--max-np", "4", "-H", "h1:2,h2:2") as job:
            job.members(2)
            job.until(r"h2: .*Hora is not installed")
    finally:
        two_hosts["h2"].run(["umount", ROOT / "src" / "hora"], check=True)


# ---- Ray ----


@pytest.mark.long
def test_on_ray(two_hosts: Cluster, ray_cluster: RayCluster, tmp_path: Path) -> None:
    arguments = ("--on", "ray", "--min-np", "1", "--max-np", "4")
    with OverSsh(two_hosts, tmp_path, *arguments, where="h1", **ray_cluster.env) as job:
        members = job.members(4)
        job.kill(two_hosts, members[0])
        job.members(3)
        job.members(4, job.generation)
        send_all(everything_of_the_job(two_hosts["h2"]), signal.SIGKILL)
        job.members(2, job.generation)
        job.members(4, job.generation)
