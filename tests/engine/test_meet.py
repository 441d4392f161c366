"""Meeting in real processes that something else launched: no hub is given, they find one another."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.engine.talk_crew import run_crew

from hora.config.env import Secret
from hora.config.settings import Settings
from hora.config.world import World
from hora.engine.hub import Hub
from hora.engine.hub_address import HubAddress, address_file
from hora.engine.meet import disconnect, meet, socket_path
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


# ---- several hosts ----


def apart(directory: Path | str) -> Callable[[int], dict[str, Any]]:
    """Ranks 0 and 1 on one host, the others on another."""
    return lambda rank: {"host": "ab"[rank // 2], "local_rank": rank % 2, "local_size": 2,
                         "rendezvous_dir": str(directory)}  # fmt: skip


def test_on_several_hosts_they_meet_through_a_file_that_does_not_stay(job: str, tmp_path: Path) -> None:
    reports = run_crew("once,steps", 4, job=job, place=apart(tmp_path), transport="shm+gloo", timeout_s=100)
    assert [(report["code"], report["rank"], report["wrong"]) for report in reports] == [
        (0, rank, 0) for rank in range(4)
    ], reports
    assert {report["transport"] for report in reports} == {"shm+gloo"}
    assert all(report["addresses"] and all(report["addresses"]) for report in reports)
    assert not list(tmp_path.iterdir())


def test_a_file_of_an_earlier_job_is_replaced(job: str, tmp_path: Path) -> None:
    world = World(size=4, job_key=job, rendezvous_dir=str(tmp_path))
    HubAddress("a", ("127.0.0.1:9",), bytes(32)).put_up(address_file(world, (0, 1, 2, 3)))
    reports = run_crew("once", 4, job=job, place=apart(tmp_path))
    assert [report["code"] for report in reports] == [0, 0, 0, 0], reports


def test_a_host_that_does_not_share_the_directory_says_so(job: str, tmp_path: Path) -> None:
    def place(rank: int) -> dict[str, Any]:
        return apart(tmp_path / "ab"[rank // 2])(rank)

    reports = run_crew("once", 4, job=job, place=place, start_timeout_s=-2.0)
    for report in reports[2:]:
        assert "on b did not hear from rank 0 within 2 s" in report["error"], reports
        assert f"in the directory {tmp_path}/b: nothing" in report["error"], reports
        assert "HORA_RENDEZVOUS_DIR" in report["error"] and "hora run" in report["error"]
    assert all("ranks 2, 3 did not call init()" in report["error"] for report in reports[:2]), reports


def test_what_happened_with_each_address_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        wrong = f"127.0.0.1:{other.getsockname()[1]}"

        def answer() -> None:
            with other.accept()[0] as visitor:
                visitor.sendall(b"HTTP/1.1 400 Bad Request")

        threading.Thread(target=answer, daemon=True).start()
        world = World(
            rank=1, size=2, host="h2", launcher="hora", hub_addresses=("127.0.0.1:9", wrong), secret=Secret(32)
        )
        with pytest.raises(EnvironmentUnfit) as caught:
            meet(world, Settings(start_timeout_s=5), (0, 1), 0)
    assert "h2 could not reach 127.0.0.1:9: connection refused" in str(caught.value)
    assert f"h2 could not reach {wrong}: it answers, but is not this job's" in str(caught.value)
    assert "--network-interfaces" in str(caught.value)


def test_without_the_secret_nothing_is_tried() -> None:
    world = World(rank=1, size=2, launcher="openmpi", hub_addresses=("127.0.0.1:9",))
    with pytest.raises(EnvironmentUnfit, match="secret is missing"):
        meet(world, Settings(), (0, 1), 0)


def test_what_cannot_be_met_is_refused() -> None:
    settings = Settings()
    with pytest.raises(UsageError, match="in which it is not"):
        meet(World(rank=1, size=3, local_size=3), settings, (0, 2), 0)
    with pytest.raises(EnvironmentUnfit, match=r"several hosts.*hora run --on mpi"):
        meet(World(rank=0, size=4, local_size=2, launcher="mpich"), settings, (0, 1, 2, 3), 0)
    with pytest.raises(EnvironmentUnfit, match="HORA_HUB_FD"):
        path = Path(__file__).open()  # noqa: SIM115
        with path:
            meet(World(rank=0, size=2, local_size=2, hub_fd=os.dup(path.fileno())), settings, (0, 1), 0)


def test_a_hub_that_the_launcher_runs_dies_with_no_rank() -> None:
    """Who runs the hub is who is blamed for its end; a worker that found it by itself blames rank 0."""
    hub = Hub(1, host="here")
    ours, theirs = socket.socketpair()
    try:
        hub.add_worker(0, ours)
        world = World(rank=0, size=1, local_size=1, hub_fd=theirs.detach())
        assert meet(world, Settings(transport="gloo"), (0,), 0).hub_rank == -1
        assert not [t.name for t in threading.enumerate() if t.name.startswith("hora") and not t.daemon]
    finally:
        disconnect()
        hub.close()
