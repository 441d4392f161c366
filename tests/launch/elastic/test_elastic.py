"""Elastic jobs of real processes on this host: killed, stopped, joined; and what is said when they cannot go on."""

from __future__ import annotations

import inspect
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.launch.elastic.job import Job
from tests.launch.farm import farm
from tests.launch.jobs import hora, run_hora

from hora.launch.elastic.choose import FLAGS
from hora.launch.function import run as hora_run_function
from hora.transport import shm

WORKER = Path(__file__).with_name("worker.py")

pytestmark = pytest.mark.skipif(not shm.available(), reason="the C core is not built")


@pytest.fixture
def jobs() -> Iterator[list[Job]]:
    started: list[Job] = []
    yield started
    for job in started:
        job.close()


def start(jobs: list[Job], *arguments: str, what: str = "slow", steps: int = 100, hosts: str = "", **env: str) -> Job:
    program = [sys.executable, str(WORKER), str(steps), what]
    command = farm("-H", hosts, *arguments, *program) if hosts else hora("run", *arguments, *program)
    jobs.append(Job(command, **env))
    return jobs[-1]


def check_finished(job: Job, steps: int = 100) -> None:
    """It finished, every sample was taken once, and nothing is left."""
    assert job.wait() == 0, job.text
    ends = [m for line in job.lines if (m := re.search(r"finished rank \d+ exact (\w+) weights (\d+) of (\d+)", line))]
    assert ends and all(m[1] == "True" and m[2] == m[3] for m in ends), job.text
    assert all(int(m[3]) % (12 * steps) == 0 for m in ends), job.text


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_any_rank_may_be_killed_and_a_replacement_joins(jobs: list[Job], victim: int) -> None:
    job = start(jobs, "--min-np", "1", "--max-np", "3")
    job.until(r"generation 1 rank", 3)
    job.kill(victim)
    job.until(r"generation 2 rank \d of 2 step \d+", 2)
    job.until(r"generation 3 rank 2 of 3 step [1-9]")
    check_finished(job)
    assert "continues with generation 2" in job.text and "up" in job.text
    survivors = {str(w) for w in range(3)} - {str(victim)}
    assert {m[1] for m in job.until(r"\[(\d)\]<stdout>:generation 2")} == survivors


def test_a_warm_spare_takes_over_in_the_next_generation(jobs: list[Job]) -> None:
    job = start(jobs, "-np", "2", "--min-np", "2", "--spares", "1")
    job.until(r"generation 1 rank", 2)
    job.until(r"up \d+ worker \d on \S+ aside")
    members = {int(m[1]) for m in job.until(r"\[(\d)\]<stdout>:generation 1")}
    (spare,) = {0, 1, 2} - members
    job.kill(min(members))
    job.until(rf"\[{spare}\]<stdout>:generation 2 rank 1 of 2 step")
    check_finished(job)


def test_a_stopped_worker_is_given_up(jobs: list[Job]) -> None:
    """Long before a host that is silent; a stop that is shorter is no fault."""
    job = start(jobs, "--min-np", "1", "--max-np", "2", steps=300, HORA_HOST_TIMEOUT="600")
    job.until(r"generation 1 rank", 2)
    job.kill(0, signal.SIGSTOP)
    job.kill(0, signal.SIGCONT)
    job.kill(1, signal.SIGSTOP)
    job.until(r"worker 1 was given up: its process has been stopped for [1-9]\.\d s")
    job.until(r"the job continues with generation 2: workers 0$")
    check_finished(job, 300)
    assert job.text.count("was given up") == 1, job.text


def test_a_stopped_worker_of_an_agents_host_is_given_up(jobs: list[Job], tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    what = f"until:{stop}"
    job = start(jobs, "--min-np", "1", "--max-np", "2", hosts="a:1,b:1", what=what, steps=3, HORA_HOST_TIMEOUT="600")
    job.until(r"generation 1 rank", 2)
    job.kill(1, signal.SIGSTOP)
    job.until(r"worker 1 was given up: its process has been stopped")
    job.until(r"generation 2: workers 0")
    stop.touch()
    check_finished(job, 3)


def test_an_exception_of_the_program_ends_the_job(jobs: list[Job]) -> None:
    job = start(jobs, "--min-np", "1", "--max-np", "2", what="raise")
    assert job.wait() == 1
    assert "ValueError: this program is wrong" in job.text and "generation 2" not in job.text


def test_all_killed_at_once_ends_with_a_sentence(jobs: list[Job]) -> None:
    job = start(jobs, "--min-np", "1", "--max-np", "2")
    job.until(r"generation 1 rank", 2)
    pids = [job.pid(0), job.pid(1)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)  # so that neither sees the other's end first
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert job.wait() == 3, job.text
    assert "all workers that held the state of the training are gone" in job.text
    assert "worker 0 on localhost was lost" in job.text and "continues" not in job.text, job.text


def test_workers_that_end_because_the_job_is_stopped_are_no_fault(jobs: list[Job]) -> None:
    job = start(jobs, "--min-np", "1", "--max-np", "3")
    job.until(r"generation 1 rank", 3)
    os.kill(job.process.pid, signal.SIGTERM)
    assert job.wait() == 128 + signal.SIGTERM
    told = [line for line in job.lines if re.search("was lost|in a row|continues|generation [2-9]:", line)]
    assert not told, job.text


def test_too_few_for_too_long(jobs: list[Job]) -> None:
    job = start(jobs, "-np", "2", "--elastic-timeout", "5", "--min-np", "2", "--blacklist-cooldown-range", "50", "60")
    job.until(r"generation 1 rank", 2)
    job.kill(1)
    assert job.wait() == 3, job.text
    assert "1 worker is ready and the job needs 2 (--min-np)" in job.text


def test_the_reset_limit(jobs: list[Job]) -> None:
    job = start(jobs, "--min-np", "1", "--max-np", "2", "--reset-limit", "0")
    job.until(r"generation 1 rank", 2)
    job.kill(0)
    assert job.wait() == 3 and "--reset-limit" in job.text


def test_a_state_that_cannot_be_pickled_is_named(jobs: list[Job]) -> None:
    job = start(jobs, "--min-np", "2", "--max-np", "2", what="unpicklable")
    assert job.wait() == 1
    assert re.search(r"UsageError: state\.held cannot be sent to other workers \(TypeError: it stays here\)", job.text)


def test_workers_on_two_hosts_survive_a_death_and_the_loss_of_a_host(jobs: list[Job], tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    job = start(jobs, "--min-np", "1", "--max-np", "4", hosts="a:2,b:2", what=f"until:{stop}", steps=3)
    job.until(r"rank \d of 4", 4)
    job.kill(1)
    job.until(r"rank \d of 3", 3)
    agent = int(Path(f"/proc/{job.pid(3)}/stat").read_text().rpartition(")")[2].split()[1])
    host = job.until(r"up \d+ worker 3 on (\w+)")[0][1]  # workers are numbered as hosts' agents answer
    os.kill(agent, signal.SIGKILL)
    job.until(f"host {host} was lost")
    stop.touch()
    check_finished(job, 3)


SCRIPTS = {
    "exit 3": "ended with exit code 3",
    "true": "named no host",
    "echo 'what is this?'": "no list of hosts",
    "sleep 60": "did not answer within",
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_bad_discovery_script_is_one_sentence(script: str, tmp_path: Path) -> None:
    path = tmp_path / "hosts.sh"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    done = run_hora("run", "--min-np", "1", "--host-discovery-script", str(path), "true", timeout_s=60)
    assert done.returncode == 3 and SCRIPTS[script] in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) <= 4


def test_hosts_that_a_script_adds_are_used(jobs: list[Job], tmp_path: Path) -> None:
    listed = tmp_path / "hosts"
    listed.write_text("localhost:1\n")
    job = start(jobs, "--min-np", "1", "--max-np", "4", "--host-discovery-script", f"cat {listed}")
    job.until(r"generation 1 rank 0 of 1")
    listed.write_text("localhost:2\n")
    job.until(r"generation 2 rank \d of 2", 2)
    check_finished(job)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--min-np", "3", "--max-np", "2"), "not in order"),
        (("--min-np", "0"), "at least 1"),
        (("--max-np", "2"), "number of workers is missing"),
        (("--min-np", "3", "-H", "localhost:2"), "more workers than there are slots"),
        (("--min-np", "1", "--blacklist-cooldown-range", "9", "2"), "the least first"),
        (("--min-np", "1", "--host-discovery-script", "x", "-H", "a:1"), "both given"),
        (("-np", "auto", "--min-np", "1"), "-np auto"),
        (("--min-np", "1", "--on", "mpi"), "--on mpi"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], says: str) -> None:
    done = run_hora("run", *arguments, "true")
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr, done.stderr


PLAIN = """
import pathlib, sys, time
import hora.torch as hvd
hvd.init()
print("in", hvd.rank(), hvd.size(), flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.02)
print("out", hvd.rank(), flush=True)
"""


def test_a_program_without_elastic_run_does_not_grow(jobs: list[Job], tmp_path: Path) -> None:
    """A newcomer would train alone; it waits, and is told of."""
    listed, stop, script = tmp_path / "hosts", tmp_path / "stop", tmp_path / "plain.py"
    listed.write_text("localhost:1\n")
    script.write_text(PLAIN)
    found = ("--host-discovery-script", f"cat {listed}")
    jobs.append(Job(hora("run", "--min-np", "1", "--max-np", "2", *found, sys.executable, str(script), str(stop))))
    job = jobs[-1]
    job.until(r"in 0 1")
    listed.write_text("localhost:2\n")
    job.until(r"worker 1 cannot join: no worker of the job has entered hvd.elastic.run yet")
    stop.touch()
    assert job.wait() == 0, job.text
    assert job.text.count(":in ") == 1 and job.text.count("cannot join") == 1, job.text


def test_a_script_that_fails_later_is_told_once_and_the_hosts_stay(jobs: list[Job], tmp_path: Path) -> None:
    listed, stop = tmp_path / "hosts", tmp_path / "stop"
    listed.write_text("localhost:2\n")
    found = ("--host-discovery-script", f"cat {listed}")
    job = start(jobs, "--min-np", "1", "--max-np", "4", *found, what=f"until:{stop}", steps=3)
    job.until(r"generation 1 rank \d of 2", 2)
    listed.write_text("what is this?\n")
    job.until(r"no list of hosts")
    listed.unlink()
    job.until(r"ended with exit code 1")
    listed.write_text("localhost:3\n")
    job.until(r"generation \d rank \d of 3", 3)
    stop.touch()
    assert job.wait() == 0 and job.text.count("no list of hosts") == 1, job.text
    assert re.search(r"exact True", job.text) and "exact False" not in job.text


FROM_PYTHON = """
import hora


def train():
    import os, signal
    import numpy as np
    from hora.elastic.run import run
    from hora.elastic.state import ObjectState
    from hora.engine import session
    from hora.engine.process_set import global_process_set
    from hora.ops import host
    from hora.types import ReduceOp, Reduction

    session.init()

    @run
    def go(state):
        while state.step < 30:
            one = np.ones(1)
            host.allreduce([one], Reduction(ReduceOp.SUM), "one", global_process_set).wait()
            state.step += 1
            if session.generation() == 1 and session.rank() == 0 and state.step == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            state.commit()
        return state.step

    return go(ObjectState(step=0))


print("results", hora.run(train, np=2, min_np=1, max_np=2))
"""


def test_a_function_goes_on_too(tmp_path: Path, jobs: list[Job]) -> None:
    script = tmp_path / "from_python.py"
    script.write_text(FROM_PYTHON)
    jobs.append(Job([sys.executable, str(script)]))
    assert jobs[-1].wait() == 0, jobs[-1].text
    assert re.search(r"results \[30(, 30)?\]", jobs[-1].text) and "the job continues" in jobs[-1].text, jobs[-1].text


# Flags that hora.run has under the names that horovod.run gave them.
FROM_HOROVOD = {"slots_per_host": "slots", "blacklist_cooldown_range": "cooldown_range"}
SPARE = """
import time
import hora


def train(folder):
    import os, pathlib
    from hora.elastic.run import run
    from hora.elastic.state import ObjectState
    from hora.engine import session

    session.init()
    pathlib.Path(folder, os.environ["HORA_WORKER"]).touch()

    @run
    def go(state):
        while len(os.listdir(folder)) < 2:  # the spare has started
            time.sleep(0.01)
        return session.size()

    return go(ObjectState(step=0))


if __name__ == "__main__":
    import sys
    print("results", hora.run(train, (sys.argv[1],), np=1, min_np=1, max_np=1, spares=1, elastic_timeout=300))
"""


def test_a_function_has_the_flags_of_the_command(tmp_path: Path, jobs: list[Job]) -> None:
    script, folder = tmp_path / "spare.py", tmp_path / "started"
    script.write_text(SPARE)
    folder.mkdir()
    jobs.append(Job([sys.executable, str(script), str(folder)]))
    assert jobs[-1].wait() == 0, jobs[-1].text
    assert "results [1]" in jobs[-1].text and len(list(folder.iterdir())) == 2, jobs[-1].text
    for flag in FLAGS:  # of hora run
        assert {flag, FROM_HOROVOD.get(flag, flag)} & set(inspect.signature(hora_run_function).parameters), flag
