"""Storms over elastic jobs: workers are killed, stopped and added at random moments, and the training must end right.

Each round is a job of its own: one to four workers, on this host or on two agents' hosts, of one framework. It gets a
few faults and is then told to finish. Right is: exit code 0, all workers of the last generation finish with equal
weights, every sample is taken once an epoch (without a framework), and nothing is left. If chance kills all who hold
the state, the job must end saying so, and is counted by itself.
"""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.chaos.rounds import Round
from tests.launch.elastic import worker
from tests.launch.elastic.job import Job
from tests.launch.elastic.test_frameworks import PROGRAMS
from tests.launch.farm import farm
from tests.launch.jobs import hora, python, shared_files

__all__ = ["FRAMEWORKS", "storms"]

FRAMEWORKS = ("numpy", *PROGRAMS)
START_S, END_S = 180.0, 180.0
SURVIVED, NOBODY = "survived", "ended saying that nobody was left"
GONE = "all workers that held the state of the training are gone"

# A framework's program trains until rank 0 finds the file.
LOOP = """
import os, sys, time
import numpy as np
from hora.engine import session
from hora.engine.process_set import global_process_set
from hora.ops import host
from hora.types import ReduceOp, Reduction

state.over = False
print(f"up {os.getpid()} worker {os.environ.get('HORA_WORKER')} on x", flush=True)

def go(state):
    print(f"generation {session.generation()} rank {session.rank()} of {session.size()} step {state.steps}", flush=True)
    while not state.over:
        step(state)
        flag = np.array([session.rank() == 0 and os.path.exists(sys.argv[1])], np.int64)
        (found,) = host.allreduce([flag], Reduction(ReduceOp.SUM), "over", global_process_set).wait()
        state.steps += 1
        state.over = bool(found[0])
        time.sleep(0.02)
        state.commit()
    return weights(state)

print("finished weights", hvd.elastic.run(go)(state), flush=True)
"""


def storms(count: int, seed: int, frameworks: tuple[str, ...] = FRAMEWORKS) -> Iterator[Round]:
    """So many jobs. Where there are several frameworks, two of three jobs are numpy's, which start sooner."""
    dice = random.Random(seed)
    for _ in range(count):
        framework = "numpy" if "numpy" in frameworks and dice.random() < 0.67 else dice.choice(frameworks)
        yield _Storm(framework, random.Random(dice.random())).run()


class _Storm:
    def __init__(self, framework: str, dice: random.Random) -> None:
        self._framework, self._dice = framework, dice
        self._np = dice.randint(1, 4)
        self._hosts = dice.randint(1, 2) if self._np > 1 else 1
        self._did: list[str] = []
        self._stopped: set[int] = set()
        self._outcome = SURVIVED

    def run(self) -> Round:
        began, before = time.monotonic(), shared_files()
        with tempfile.TemporaryDirectory() as folder:
            job = self._start(Path(folder))
            try:
                misses = self._rage(job, Path(folder))
            except AssertionError as error:
                misses = [f"hanging, or ended before it should: {str(error)[-1500:]}"]
            finally:
                job.close()
        if left := shared_files() - before:
            misses.append(f"left behind: {left}")
        hosts = f"{self._hosts} host{'s'[: self._hosts > 1]}"
        what = f"{self._framework}, {self._np} workers, {hosts}"
        return Round(what, time.monotonic() - began, "; ".join(self._did), tuple(misses), self._outcome)

    def _start(self, folder: Path) -> Job:
        stop, self._listed = folder / "stop", folder / "hosts"
        if self._framework == "numpy":
            program = [sys.executable, str(Path(worker.__file__)), "3", f"until:{stop}"]
        else:
            program = [*python(PROGRAMS[self._framework] + LOOP), str(stop)]
        limits = ["--min-np", "1", "--max-np", str(max(self._np, 2)), "--start-timeout", "120"]
        limits += ["--blacklist-cooldown-range", "1", "2", "--elastic-timeout", "120"]
        environment = {"HORA_HOST_TIMEOUT": "4", "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
        if self._hosts == 2:
            half = self._np // 2
            return Job(farm("-H", f"a:{self._np - half},b:{half}", *limits, *program), **environment)
        self._listed.write_text(f"localhost:{self._np}\n")
        return Job(hora("run", "--host-discovery-script", f"cat {self._listed}", *limits, *program), **environment)

    def _rage(self, job: Job, folder: Path) -> list[str]:
        dice = self._dice
        early = dice.random() < 0.3  # while they still meet for the first time
        job.until(r"up \d+ worker \d" if early else r"generation 1 rank", deadline_s=START_S)
        for _ in range(dice.randint(1, 4)):
            time.sleep(dice.uniform(0.0, 1.2))
            if job.process.poll() is not None:
                break
            self._fault(job)
        (folder / "stop").touch()
        code = job.wait(END_S)
        if code == 3 and GONE in job.text:
            self._outcome = NOBODY
            return []
        misses = [] if code == 0 else [f"exit code {code}: {job.text[-1500:]}"]
        if self._framework == "numpy":
            ends = re.findall(r"finished rank \d+ exact (\w+) weights (\d+) of (\d+)", job.text)
            right = bool(ends) and all(e == "True" and had == wanted for e, had, wanted in ends)
        else:
            ends = re.findall(r"finished weights (\[.*\])", job.text)
            right = bool(ends) and len(set(ends)) == 1
        generations = re.findall(r"generation (\d+) rank \d+ of (\d+)", job.text)
        last = max((int(number), int(size)) for number, size in generations)[1] if generations else 0
        if not right or len(set(ends)) != 1 or len(ends) != last:
            misses.append(f"the result is not right: of {last} workers {ends}")
        return misses

    def _fault(self, job: Job) -> None:
        living = [pid for pid in self._pids(job) if _alive(pid) and pid not in self._stopped]
        kinds = ["kill"] * 5 + ["stop"] + ["arrival"] * (self._hosts == 1)
        kind = self._dice.choice(kinds)
        if len(living) < 2 and self._hosts == 1:
            kind = "arrival"
        match kind:
            case "arrival":
                slots = self._dice.randint(1, 4)
                self._listed.write_text(f"localhost:{slots}\n")
                self._did.append(f"slots {slots}")
            case _ if len(living) > 1:
                pid = self._dice.choice(living)
                number = signal.SIGKILL if kind == "kill" else signal.SIGSTOP
                self._stopped |= {pid} if kind == "stop" else set()
                self._did.append(kind)
                os.kill(pid, number)

    def _pids(self, job: Job) -> list[int]:
        """Of those that have been in a generation, so that one who holds the state is left; or else of all."""
        pids = {m[2]: int(m[1]) for line in job.lines if (m := re.search(r"up (\d+) worker (\d+)", line))}
        members = {m[1] for line in job.lines if (m := re.search(r"\[(\d+)\]<stdout>:generation \d+ rank", line))}
        return [pid for number, pid in pids.items() if number in members or not members]


def _alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
