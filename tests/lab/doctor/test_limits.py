"""Limits against what N workers need."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.lab.doctor.fakes import FakeMachine

from hora.lab.doctor import limits
from hora.lab.doctor.machine import Machine

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
    found = {check.name: check.look(machine) for check in limits.CHECKS}
    assert {name: one.status for name, one in found.items() if not isinstance(one, list)} == {
        "nofile": "ok", "nproc": "ok", "memlock": "ok", "core-files": "note", "other-limits": "ok",
    }  # fmt: skip


@pytest.mark.parametrize(("hard", "fix"), [("4096", "ulimit -n 576"), ("256", "limits.conf")])
def test_open_files(tmp_path: Path, hard: str, fix: str) -> None:
    found = limits.open_files(limited(tmp_path, np=64, nofile="256", nofile_hard=hard))
    assert found.status == "problem" and "256 open files; 64 workers need about 576" in found.told and fix in found.fix


def test_processes_of_this_user_count(tmp_path: Path) -> None:
    machine = limited(tmp_path, np=4, nproc="100")
    machine.put("/proc/10/status", "Uid:\t1000\t1000\t1000\t1000\nThreads:\t60\n")
    machine.put("/proc/11/status", "Uid:\t0\t0\t0\t0\nThreads:\t90\n")
    found = limits.processes(machine)
    assert found.status == "problem" and "40 more processes" in found.told and "ulimit -u" in found.told


def test_the_cgroup_limits_processes_too(tmp_path: Path) -> None:
    machine = limited(tmp_path)
    machine.put("/proc/self/cgroup", "0::/\n")
    machine.put("/sys/fs/cgroup/cgroup.controllers", "pids")
    machine.put("/sys/fs/cgroup/pids.max", "20")
    machine.put("/sys/fs/cgroup/pids.current", "10")
    assert "pids.max" in limits.processes(machine).fix


def test_locked_memory_matters_with_a_card_that_locks(tmp_path: Path) -> None:
    machine = limited(tmp_path, memlock="65536")
    assert limits.locked_memory(machine).status == "ok"
    machine.put("/sys/class/infiniband/mlx5_0/node_type", "1")
    found = limits.locked_memory(machine)
    assert found.status == "warning" and "64 KB" in found.told and "mlx5_0" in found.told


def test_login_nodes(tmp_path: Path) -> None:
    found = limits.other_limits(limited(tmp_path, cpu="3600", fsize="1000"))
    assert found.status == "warning" and "ulimit -t is 3600" in found.told and "ulimit -f unlimited" in found.fix


def test_this_machine() -> None:
    assert limits.open_files(Machine({})).status == "ok"
    assert limits.processes(Machine({})).status == "ok"
