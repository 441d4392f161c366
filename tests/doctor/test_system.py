"""Limits against what N workers need, system calls, the network, and what no job owns any more."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.doctor.fakes import FakeMachine

from hora.config.env import environ
from hora.doctor import system
from hora.doctor.machine import Interface, Machine

TABLE = """Limit                     Soft Limit           Hard Limit           Units
Max cpu time              {cpu:<20} unlimited            seconds
Max file size             {fsize:<20} unlimited            bytes
Max core file size        {core:<20} unlimited            bytes
Max processes             {nproc:<20} 96343                processes
Max open files            {nofile:<20} {nofile_hard:<20} files
Max locked memory         {memlock:<20} 65536                bytes
Max address space         unlimited            unlimited            bytes
"""
FREE = dict.fromkeys(("cpu", "fsize", "core", "nproc", "nofile", "nofile_hard", "memlock"), "unlimited")


def limited(root: Path, np: int = 2, **values: str) -> FakeMachine:
    machine = FakeMachine(root, np)
    machine.put("/proc/self/limits", TABLE.format(**{**FREE, **values}))
    machine.put("/proc/self/status", "Uid:\t1000\t1000\t1000\t1000\nThreads:\t1\n")
    return machine


def test_nothing_is_limited(tmp_path: Path) -> None:
    machine = limited(tmp_path)
    found = {check.name: check.look(machine) for check in system.LIMITS}
    assert {name: one.status for name, one in found.items() if not isinstance(one, list)} == {
        "nofile": "ok", "nproc": "ok", "memlock": "ok", "core-files": "note", "other-limits": "ok",
    }  # fmt: skip


@pytest.mark.parametrize(("hard", "fix"), [("4096", "ulimit -n 576"), ("256", "limits.conf")])
def test_open_files(tmp_path: Path, hard: str, fix: str) -> None:
    found = system.open_files(limited(tmp_path, np=64, nofile="256", nofile_hard=hard))
    assert found.status == "problem" and "256 open files; 64 workers need about 576" in found.told and fix in found.fix


def test_processes_of_this_user_count(tmp_path: Path) -> None:
    machine = limited(tmp_path, np=4, nproc="100")
    machine.put("/proc/10/status", "Uid:\t1000\t1000\t1000\t1000\nThreads:\t60\n")
    machine.put("/proc/11/status", "Uid:\t0\t0\t0\t0\nThreads:\t90\n")
    found = system.processes(machine)
    assert found.status == "problem" and "40 more processes" in found.told and "ulimit -u" in found.told


def test_the_cgroup_limits_processes_too(tmp_path: Path) -> None:
    machine = limited(tmp_path)
    machine.put("/proc/self/cgroup", "0::/\n")
    machine.put("/sys/fs/cgroup/cgroup.controllers", "pids")
    machine.put("/sys/fs/cgroup/pids.max", "20")
    machine.put("/sys/fs/cgroup/pids.current", "10")
    assert "pids.max" in system.processes(machine).fix


def test_locked_memory_matters_with_a_card_that_locks(tmp_path: Path) -> None:
    machine = limited(tmp_path, memlock="65536")
    assert system.locked_memory(machine).status == "ok"
    machine.put("/sys/class/infiniband/mlx5_0/node_type", "1")
    found = system.locked_memory(machine)
    assert found.status == "warning" and "64 KB" in found.told and "mlx5_0" in found.told


def test_login_nodes(tmp_path: Path) -> None:
    found = system.other_limits(limited(tmp_path, cpu="3600", fsize="1000"))
    assert found.status == "warning" and "ulimit -t is 3600" in found.told and "ulimit -f unlimited" in found.fix


def test_this_machine_limits() -> None:
    assert system.open_files(Machine({})).status == "ok"
    assert system.processes(Machine({})).status == "ok"


FINE = ['{"memfd_create": ""}', '{"pidfd_open": ""}', '{"futex": ""}', '{"SCM_RIGHTS": ""}', '{"/proc/PID/fd": ""}']


def test_this_kernel() -> None:
    found = system.calls(Machine(environ()))
    assert found.status == "ok" and "memfd_create, pidfd_open, futex" in found.told


@pytest.mark.parametrize(
    ("lines", "code", "status", "named"),
    [
        ([*FINE[:1], '{"pidfd_open": "Function not implemented"}', *FINE[2:]], 0, "warning", "four times a second"),
        (['{"memfd_create": "Operation not permitted"}', *FINE[1:]], 0, "problem", "Gloo must carry"),
        (FINE[:2], -31, "problem", "futex does not work (ended by SIGSYS)"),
        ([], None, "problem", "no answer"),
    ],
)
def test_a_sandbox(tmp_path: Path, lines: list[str], code: int | None, status: str, named: str) -> None:
    machine = FakeMachine(tmp_path)
    machine.answer("probe calls", code, "\n".join(lines))
    found = system.calls(machine)
    assert found.status == status and named in found.told and "seccomp" in found.fix


LO = Interface("lo", ("127.0.0.1",), True, 0, 65536)
DOCKER = Interface("docker0", ("172.17.0.1",), True, 0, 1500)


def test_this_machine_network() -> None:
    assert system.loopback(Machine({})).status == "ok"
    assert system.interfaces(Machine({})).status in ("ok", "note", "warning")
    assert system.host_name(Machine({})).status in ("ok", "note")


def test_no_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "connects", lambda address: "Network is unreachable")
    found = system.loopback(Machine({}))
    assert found.status == "problem" and "ip link set lo up" in found.fix


def test_docker_is_avoided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = FakeMachine(tmp_path)
    machine.links = [LO, Interface("ib0", ("10.0.0.5",), True, 100_000, 4092), DOCKER]
    monkeypatch.setattr(system, "candidates", lambda named: ("10.0.0.5",))
    found = system.interfaces(machine)
    assert found.status == "ok"
    assert found.told == "other hosts would be given ib0 (10.0.0.5; 100 Gbit/s, MTU 4092); not used: docker0"


def test_a_slow_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = FakeMachine(tmp_path)
    machine.links = [LO, Interface("eth0", ("10.0.0.5",), True, 100, 1500)]
    monkeypatch.setattr(system, "candidates", lambda named: ("10.0.0.5",))
    assert system.interfaces(machine).status == "warning"


def test_only_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = FakeMachine(tmp_path)
    machine.links = [LO, DOCKER]
    monkeypatch.setattr(system, "candidates", lambda named: ("127.0.0.1",))
    found = system.interfaces(machine)
    assert found.status == "note" and "not used: docker0" in found.told


def test_a_name_that_does_not_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system.socket, "gethostname", lambda: "nowhere.invalid")
    assert system.host_name(Machine({})).status == "note"


def with_process(machine: FakeMachine, pid: int, command: str, job: str = "") -> None:
    machine.put(f"/proc/{pid}/cmdline", command.replace(" ", "\0") + "\0")
    machine.put(f"/proc/{pid}/environ", "HOME=/\0" + (f"HORA_JOB={job}\0" if job else ""))
    machine.put(f"/proc/{pid}/stat", "")


def test_a_job_that_runs_is_left_alone(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    with_process(machine, 10, "python train.py", job="aa")
    with_process(machine, 11, "python -I -S /x/launch/host/guardian.py aa")
    found = system.left_processes(machine)
    assert found.status == "ok" and "running now: 1" in found.told


def test_a_job_without_its_guardian(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, HORA_JOB="mine")
    with_process(machine, 10, "python train.py", job="aa")
    with_process(machine, 12, "hora doctor", job="mine")
    with_process(machine, 13, "bash")
    found = system.left_processes(machine)
    assert found.status == "warning" and found.fix == "kill 10"


def test_files_leftovers(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    with_process(machine, 10, "python train.py")
    machine.put("/dev/shm/torch_10_123_0", "")
    machine.put("/dev/shm/other", "")
    assert system.left_files(machine).status == "ok"
    machine.put("/dev/shm/torch_99_123_0", "")
    found = system.left_files(machine)
    assert found.status == "warning" and found.fix == "rm /dev/shm/torch_99_123_0"
