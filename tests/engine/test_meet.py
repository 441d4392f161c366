"""Meeting in real processes that something else launched: no hub is given, they find one another."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest
from tests.engine.talk_crew import run_crew

from hora.config.settings import Settings
from hora.config.world import World
from hora.engine.meet import meet, socket_path
from hora.errors import EnvironmentUnfit, UsageError


@pytest.fixture
def job() -> str:
    return f"job-{secrets.token_hex(8)}"


def left_behind(job: str, size: int) -> bool:
    return socket_path(job, tuple(range(size))).exists()


def test_they_meet_and_meet_again_and_leave_no_socket(job: str) -> None:
    reports = run_crew("once,twice,thrice", 3, job=job)
    assert [(report["code"], report["rank"], report["peers"]) for report in reports] == [
        (0, rank, [0, 1, 2]) for rank in range(3)
    ], reports
    assert not left_behind(job, 3)
    mode = socket_path(job, (0,)).parent.stat().st_mode
    assert mode & 0o777 == 0o700


def test_parts_of_the_world_meet_by_themselves(job: str) -> None:
    reports = run_crew("evens", 4, job=job)
    assert [(report["rank"], report["peers"]) for report in reports] == [
        (0, [0, 2]),
        (0, [1, 3]),
        (1, [0, 2]),
        (1, [1, 3]),
    ]


@pytest.mark.parametrize(
    ("absent", "words"), [((0,), "rank 0 did not call init()"), ((2,), "rank 2 did not call init()")]
)
def test_the_absent_are_named(job: str, absent: tuple[int, ...], words: str) -> None:
    reports = run_crew("once", 3, job=job, absent=absent, start_timeout_s=-1.5)
    assert all(report["error"].startswith("StallError") and words in report["error"] for report in reports), reports
    assert not left_behind(job, 3)


def test_the_death_of_the_one_who_runs_the_hub_is_noticed(job: str) -> None:
    reports = run_crew("hub_dies", 3, job=job)
    assert [report["code"] for report in reports] == [-9, 0, 0], reports


def test_what_cannot_be_met_is_refused() -> None:
    settings = Settings()
    with pytest.raises(UsageError, match="in which it is not"):
        meet(World(rank=1, size=3, local_size=3), settings, (0, 2), 0)
    with pytest.raises(EnvironmentUnfit, match="several hosts"):
        meet(World(rank=0, size=4, local_size=2, launcher="slurm"), settings, (0, 1, 2, 3), 0)
    with pytest.raises(EnvironmentUnfit, match="HORA_HUB_FD"):
        path = Path(__file__).open()  # noqa: SIM115
        with path:
            meet(World(rank=0, size=2, local_size=2, hub_fd=os.dup(path.fileno())), settings, (0, 1), 0)
