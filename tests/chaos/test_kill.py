"""Kill -9 at random moments: every survivor names the dead within a second, and nothing is left behind."""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import sys
import time
from pathlib import Path

import pytest
from tests.launch.jobs import processes_of, run_hora, shared_files, start_hora, wait_until
from tests.prompt import PROMPT_S

WORKER = Path(__file__).with_name("worker.py")
KILLS = int(os.environ.get("HORA_TEST_KILLS", "10"))
SIZE = 3


@pytest.mark.slow
@pytest.mark.timeout(KILLS * 10)
@pytest.mark.parametrize(("transport", "kills"), [("shm", KILLS), ("gloo", max(1, KILLS // 10))])
def test_random_kills_of_workers(transport: str, kills: int) -> None:
    before, delays = shared_files(), []
    for trial in range(kills):
        dice = random.Random(trial)
        job = start_hora("run", "-np", str(SIZE), sys.executable, WORKER, "loop", HORA_TRANSPORT=transport)
        try:
            pids, words = _until_ready(job)
            cookie = _cookie(pids[0])
            victim = dice.randrange(SIZE)
            _busy_wait(dice.random() * 0.03)  # the moment of death is what is random here
            killed_at = time.monotonic()
            os.kill(pids[victim], signal.SIGKILL)
            output, _ = job.communicate(timeout=30)
        finally:
            job.kill()
            job.communicate()
        words += [
            json.loads(line[line.index("{") :]) for line in output.splitlines() if '{"rank"' in line and "|" not in line
        ]
        survivors = {w["rank"]: w for w in words if "raised" in w}
        context = f"trial {trial}, victim {victim}: {output}"
        assert set(survivors) == set(range(SIZE)) - {victim}, context
        for word in survivors.values():
            assert word["raised"] == "PeerLostError", context
            named = f"rank {victim} (host localhost, pid {pids[victim]}) died: signal 9 (SIGKILL)"
            assert word["text"].startswith(named), context
            delays.append(word["at"] - killed_at)
        assert job.returncode == 128 + signal.SIGKILL, context
        assert f"rank {victim} failed first" in output, context
        wait_until(lambda cookie=cookie: not processes_of(cookie), what="the job's processes to be gone")
    assert statistics.median(delays) < 1.0 and max(delays) < PROMPT_S, sorted(delays)
    assert shared_files() == before


@pytest.mark.slow
def test_small_operations_take_no_memory() -> None:
    done = run_hora("run", "-np", "2", sys.executable, WORKER, "many", "300000", timeout_s=110)
    grown = [json.loads(line[line.index("{") :])["grown_kb"] for line in done.stdout.splitlines() if "{" in line]
    assert done.returncode == 0 and len(grown) == 2, done.stdout + done.stderr
    assert all(kb < 2000 for kb in grown), grown


def _until_ready(job) -> tuple[dict[int, int], list[dict[str, object]]]:  # type: ignore[no-untyped-def]
    pids: dict[int, int] = {}
    while len(pids) < SIZE:
        line = job.stdout.readline()
        assert line, f"the job ended before it was ready: {job.wait()}"
        if '"ready"' in line:
            word = json.loads(line[line.index("{") :])
            pids[word["ready"]] = word["pid"]
    return pids, []


def _cookie(pid: int) -> str:
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next(e for e in environment if e.startswith(b"HORA_JOB=")).decode().partition("=")[2]


def _busy_wait(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
