"""Cores, threads, topology: each problem on a machine that has it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.lab.doctor.fakes import FakeMachine

from hora.lab.doctor import processor
from hora.lab.doctor.machine import Machine


def with_cores(root: Path, online: str, allowed: str, np: int = 2, quota: str = "", **environ: str) -> FakeMachine:
    machine = FakeMachine(root, np, **environ)
    machine.put("/sys/devices/system/cpu/online", online)
    machine.put("/proc/self/status", f"Name:\tpython\nCpus_allowed_list:\t{allowed}\n")
    if quota:
        machine.put("/proc/self/cgroup", "0::/\n")
        machine.put("/sys/fs/cgroup/cgroup.controllers", "cpu")
        machine.put("/sys/fs/cgroup/cpu.max", quota)
    return machine


def test_all_cores(tmp_path: Path) -> None:
    found = processor.cores(with_cores(tmp_path, "0-7", "0-7"))
    assert found.status == "ok" and found.told == "8 cores, all usable; no quota"


def test_a_quota_below_what_programs_see(tmp_path: Path) -> None:
    found = processor.cores(with_cores(tmp_path, "0-63", "0-63", quota="400000 100000"))
    assert found.status == "warning" and "quota of 4" in found.told and "at most 4 workers" in found.fix


def test_more_workers_than_cores(tmp_path: Path) -> None:
    found = processor.cores(with_cores(tmp_path, "0-63", "0", np=4))
    assert found.status == "warning" and "1 of 64 cores" in found.told and "--cpus-per-task" in found.fix


@pytest.mark.parametrize(
    ("environ", "status", "named"),
    [
        ({}, "ok", "gives each worker 2 of 4 cores"),
        ({"OMP_NUM_THREADS": "2"}, "ok", "OMP_NUM_THREADS=2"),
        ({"OMP_NUM_THREADS": "4"}, "warning", "OMP_NUM_THREADS=4 x 2 workers = 8 threads on 4 cores"),
        ({"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "8"}, "warning", "MKL_NUM_THREADS=8"),
        ({"OMP_PROC_BIND": "close"}, "warning", "same first cores"),
        ({"OMP_PROC_BIND": "false"}, "ok", ""),
    ],
)
def test_threads(tmp_path: Path, environ: dict[str, str], status: str, named: str) -> None:
    found = processor.threads(with_cores(tmp_path, "0-3", "0-3", **environ))
    assert found.status == status and named in found.told


def test_topology(tmp_path: Path) -> None:
    machine = with_cores(tmp_path, "0-3", "0-3", np=4)
    for core in range(4):
        machine.put(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list", f"{core % 2},{core % 2 + 2}")
        machine.put(f"/sys/devices/system/cpu/cpu{core}/topology/physical_package_id", "0")
    found = processor.topology(machine)
    assert found.status == "note" and "2 cores with 4 hardware threads" in found.told and "-np 2" in found.fix


def test_numa(tmp_path: Path) -> None:
    machine = with_cores(tmp_path, "0-3", "0-3", np=2)
    for node in range(4):
        machine.put(f"/sys/devices/system/node/node{node}/cpulist", str(node))
    assert processor.topology(machine).status == "note" and "-np 4" in processor.topology(machine).fix


def test_load(tmp_path: Path) -> None:
    machine = with_cores(tmp_path, "0-3", "0-3")
    machine.put("/proc/loadavg", "7.5 1 1 1/2 3")
    assert processor.load(machine).status == "note"
    machine.put("/proc/loadavg", "0.5 1 1 1/2 3")
    assert processor.load(machine).status == "ok"


def test_this_machine() -> None:
    machine = Machine({})
    assert processor.usable(machine) >= 1
    assert processor.clock(machine).figures["read_s"] < 1e-4
    assert all(check.look(machine).status != "problem" for check in processor.CHECKS)  # type: ignore[union-attr]
