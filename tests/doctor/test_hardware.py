"""Cores, threads and the clock; memory; GPUs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.doctor.fakes import FakeMachine

from hora.config.env import environ
from hora.doctor import hardware
from hora.doctor.machine import Disk, Machine


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
    found = hardware.cores(with_cores(tmp_path, "0-7", "0-7"))
    assert found.status == "ok" and found.told == "8 cores, all usable; no quota"


def test_a_quota_below_what_programs_see(tmp_path: Path) -> None:
    found = hardware.cores(with_cores(tmp_path, "0-63", "0-63", quota="400000 100000"))
    assert found.status == "warning" and "quota of 4" in found.told and "at most 4 workers" in found.fix


def test_more_workers_than_cores(tmp_path: Path) -> None:
    found = hardware.cores(with_cores(tmp_path, "0-63", "0", np=4))
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
    found = hardware.threads(with_cores(tmp_path, "0-3", "0-3", **environ))
    assert found.status == status and named in found.told


def test_topology(tmp_path: Path) -> None:
    machine = with_cores(tmp_path, "0-3", "0-3", np=4)
    for core in range(4):
        machine.put(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list", f"{core % 2},{core % 2 + 2}")
        machine.put(f"/sys/devices/system/cpu/cpu{core}/topology/physical_package_id", "0")
    found = hardware.topology(machine)
    assert found.status == "note" and "2 cores with 4 hardware threads" in found.told and "-np 2" in found.fix


def test_numa(tmp_path: Path) -> None:
    machine = with_cores(tmp_path, "0-3", "0-3", np=2)
    for node in range(4):
        machine.put(f"/sys/devices/system/node/node{node}/cpulist", str(node))
    assert hardware.topology(machine).status == "note" and "-np 4" in hardware.topology(machine).fix


def test_load(tmp_path: Path) -> None:
    machine = with_cores(tmp_path, "0-3", "0-3")
    machine.put("/proc/loadavg", "7.5 1 1 1/2 3")
    assert hardware.load(machine).status == "note"
    machine.put("/proc/loadavg", "0.5 1 1 1/2 3")
    assert hardware.load(machine).status == "ok"


def test_this_machine_processor() -> None:
    machine = Machine({})
    assert hardware.usable(machine) >= 1
    assert hardware.clock(machine).figures["read_s"] < 1e-4
    assert all(check.look(machine).status != "problem" for check in hardware.PROCESSOR)  # type: ignore[union-attr]


GB = 1 << 30


def with_memory(root: Path, total: int, available: int) -> FakeMachine:
    machine = FakeMachine(root)
    machine.put("/proc/meminfo", f"MemTotal: {total >> 10} kB\nMemAvailable: {available >> 10} kB\n")
    return machine


def test_enough(tmp_path: Path) -> None:
    found = hardware.memory(with_memory(tmp_path, 16 * GB, 8 * GB))
    assert found.status == "ok" and found.told == "16 GB, 8 GB of it available: 4 GB for each of 2 workers"


def test_a_container_with_little(tmp_path: Path) -> None:
    machine = with_memory(tmp_path, 256 * GB, 200 * GB)
    machine.put("/proc/self/cgroup", "0::/\n")
    machine.put("/sys/fs/cgroup/cgroup.controllers", "memory")
    machine.put("/sys/fs/cgroup/memory.max", str(GB))
    found = hardware.memory(machine)
    assert (
        found.status == "warning" and "the cgroup allows 1 GB: 512 MB for each" in found.told and "--mem" in found.fix
    )


def test_dev_shm(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    assert hardware.dev_shm(machine).status == "warning"
    machine.disks["/dev/shm"] = Disk(64 << 20, 64 << 20)
    assert "--shm-size" in hardware.dev_shm(machine).fix
    machine.disks["/dev/shm"] = Disk(8 * GB, 1 << 20)
    assert "remove them" in hardware.dev_shm(machine).fix
    machine.disks["/dev/shm"] = Disk(8 * GB, 8 * GB)
    assert hardware.dev_shm(machine).status == "ok"


def test_segment() -> None:
    found = hardware.segment(Machine(environ()))
    assert found.status == "ok" and "for 2 workers" in found.told
    found = hardware.segment(Machine(environ(), np=100_000))
    assert found.status == "problem" and "At most 512" in found.told


def test_segment_without_a_core(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.answer("create_segment", 4, "the C core was not built")
    assert hardware.segment(machine).status == "not here"


CARDS = "NVIDIA A100-SXM4-40GB, 550.54.15, 40960, 3\nNVIDIA A100-SXM4-40GB, 550.54.15, 40960, {used}\n"


def with_gpus(root: Path, np: int = 2, used: int = 3, **facts: object) -> FakeMachine:
    machine = FakeMachine(root, np)
    machine.programs.add("nvidia-smi")
    machine.answer("nvidia-smi", 0, CARDS.format(used=used))
    told = {"count": 2, "built": "12.4", "nccl": "2.21.5", "no_peer": [], **facts}
    machine.answer("device_count", 0, f"FACTS{json.dumps(told)}\n")
    return machine


def test_none_gpus(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    assert [check.look(machine).status for check in hardware.GPUS] == ["not here"] * 2  # type: ignore[union-attr]


def test_two(tmp_path: Path) -> None:
    machine = with_gpus(tmp_path)
    assert hardware.driver(machine).told == "2 x NVIDIA A100-SXM4-40GB, driver 550.54.15, 40 GB each"
    assert hardware.cuda(machine).told == "torch sees 2 (CUDA 12.4, NCCL 2.21.5)"
    assert hardware.cuda(machine).figures == {"count": 2}


@pytest.mark.parametrize(
    ("facts", "np", "status", "named"),
    [
        ({"no_peer": [[0, 1], [1, 0]]}, 2, "note", "without peer access: 0-1"),
        ({"count": 0, "built": ""}, 2, "problem", "built without CUDA"),
        ({"count": 0}, 2, "problem", "CUDA_VISIBLE_DEVICES"),
        ({}, 8, "note", "8 workers would share them"),
    ],
)
def test_torch_and_gpus(tmp_path: Path, facts: dict[str, object], np: int, status: str, named: str) -> None:
    found = hardware.cuda(with_gpus(tmp_path, np, **facts))
    assert found.status == status and named in found.told


def test_busy_and_broken(tmp_path: Path) -> None:
    assert "GPU 1 is in use" in hardware.driver(with_gpus(tmp_path, used=30000)).told
    machine = FakeMachine(tmp_path)
    machine.put("/dev/nvidia0", "")
    machine.answer("nvidia-smi", 9, "Failed to initialize NVML: Driver/library version mismatch")
    assert hardware.driver(machine).status == "problem" and "version mismatch" in hardware.driver(machine).told
