"""Memory on machines that have little, and on this one."""

from __future__ import annotations

from pathlib import Path

from tests.lab.doctor.fakes import FakeMachine

from hora.config.env import environ
from hora.lab.doctor import memory
from hora.lab.doctor.machine import Disk, Machine

GB = 1 << 30


def with_memory(root: Path, total: int, available: int) -> FakeMachine:
    machine = FakeMachine(root)
    machine.put("/proc/meminfo", f"MemTotal: {total >> 10} kB\nMemAvailable: {available >> 10} kB\n")
    return machine


def test_enough(tmp_path: Path) -> None:
    found = memory.memory(with_memory(tmp_path, 16 * GB, 8 * GB))
    assert found.status == "ok" and found.told == "16 GB, 8 GB of it available: 4 GB for each of 2 workers"


def test_a_container_with_little(tmp_path: Path) -> None:
    machine = with_memory(tmp_path, 256 * GB, 200 * GB)
    machine.put("/proc/self/cgroup", "0::/\n")
    machine.put("/sys/fs/cgroup/cgroup.controllers", "memory")
    machine.put("/sys/fs/cgroup/memory.max", str(GB))
    found = memory.memory(machine)
    assert (
        found.status == "warning" and "the cgroup allows 1 GB: 512 MB for each" in found.told and "--mem" in found.fix
    )


def test_dev_shm(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    assert memory.dev_shm(machine).status == "warning"
    machine.disks["/dev/shm"] = Disk(64 << 20, 64 << 20)
    assert "--shm-size" in memory.dev_shm(machine).fix
    machine.disks["/dev/shm"] = Disk(8 * GB, 1 << 20)
    assert "remove them" in memory.dev_shm(machine).fix
    machine.disks["/dev/shm"] = Disk(8 * GB, 8 * GB)
    assert memory.dev_shm(machine).status == "ok"


def test_segment() -> None:
    found = memory.segment(Machine(environ()))
    assert found.status == "ok" and "for 2 workers" in found.told
    found = memory.segment(Machine(environ(), np=100_000))
    assert found.status == "problem" and "At most 256" in found.told


def test_segment_without_a_core(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.answer("create_segment", 4, "the C core was not built")
    assert memory.segment(machine).status == "not here"
