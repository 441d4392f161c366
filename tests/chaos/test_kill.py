"""Kill -9 at random moments: every survivor names the dead within a second, and nothing is left behind."""

from __future__ import annotations

import json
import sys

import pytest
from tests.chaos.rounds import DEATH_S, WORKER, kills
from tests.launch.jobs import run_hora, shared_files


@pytest.mark.slow
@pytest.mark.parametrize(("transport", "count"), [("shm", 8), ("gloo", 1)])
def test_random_kills_of_workers(transport: str, count: int) -> None:
    before = shared_files()
    found = list(kills(count, seed=1, transport=transport))
    assert len(found) == count and [one for one in found if one.misses] == []
    assert sorted(one.seconds for one in found)[count // 2] < DEATH_S, found
    assert shared_files() == before


@pytest.mark.slow
def test_small_operations_take_no_memory() -> None:
    done = run_hora("run", "-np", "2", sys.executable, WORKER, "many", "300000", timeout_s=110)
    grown = [json.loads(line[line.index("{") :])["grown_kb"] for line in done.stdout.splitlines() if "{" in line]
    assert done.returncode == 0 and len(grown) == 2, done.stdout + done.stderr
    assert all(kb < 2000 for kb in grown), grown
