"""Commands that end, files that are read, and the tightest limit on the way up."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.doctor.fakes import FakeMachine
from tests.launch.jobs import wait_until
from tests.prompt import PROMPT_S

from hora.doctor.machine import CgroupLimits, Machine, cgroup_limits

PATH = {"PATH": "/usr/bin:/bin"}


def test_a_command_that_does_not_end_is_ended_with_its_children(tmp_path: Path) -> None:
    started = time.monotonic()
    ran = Machine(PATH).run(["sh", "-c", f"sleep 60 & echo $! > {tmp_path}/pid; echo said; wait"], 0.5)
    assert ran.code is None and "said" in ran.out and "no answer" in ran.ended
    assert time.monotonic() - started < PROMPT_S
    child = Path("/proc") / (tmp_path / "pid").read_text().strip()
    wait_until(lambda: not child.exists() or "sleep" not in (child / "comm").read_text())


def test_how_it_went() -> None:
    machine = Machine(PATH)
    assert machine.run(["sh", "-c", "echo out; echo err >&2; exit 3"], 5.0)[:3] == (3, "out\n", "err\n")
    assert machine.run(["sh", "-c", "kill -SEGV $$"], 5.0).ended == "ended by SIGSEGV"
    missing = machine.run(["/nowhere/at-all"], 5.0)
    assert missing.code == 127 and "No such file" in missing.last
    assert machine.run(["cat"], 5.0, text="given").out == "given"


def test_a_job_of_the_doctors_has_a_place_of_its_own() -> None:
    machine = Machine({"HORA_RANK": "1", "OMPI_COMM_WORLD_RANK": "1", "HORA_LOG_LEVEL": "debug", "HOROVOD_SIZE": "2"})
    assert machine.job_environment(A="b") == {"HORA_LOG_LEVEL": "debug", "A": "b"}


def test_files_machine(tmp_path: Path) -> None:
    machine = Machine({}, root=tmp_path)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "x").write_text("1\n")
    assert machine.read("/proc/x") == "1" and machine.read("/proc/y") is None
    assert machine.names("/proc") == ["x"] and machine.names("/sys") == []


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path)


def test_none_cgroup(machine: FakeMachine) -> None:
    assert cgroup_limits(machine) == CgroupLimits()


def test_version_2_takes_the_tightest_on_the_way_up(machine: FakeMachine) -> None:
    machine.put("/proc/self/cgroup", "0::/slurm/job_7/step_0\n")
    machine.put("/sys/fs/cgroup/cgroup.controllers", "cpu memory pids")
    machine.put("/sys/fs/cgroup/slurm/job_7/memory.max", str(4 << 30))
    machine.put("/sys/fs/cgroup/slurm/job_7/step_0/memory.max", "max")
    machine.put("/sys/fs/cgroup/slurm/job_7/step_0/cpu.max", "150000 100000")
    machine.put("/sys/fs/cgroup/slurm/cpu.max", "max 100000")
    machine.put("/sys/fs/cgroup/slurm/job_7/pids.max", "100")
    machine.put("/sys/fs/cgroup/slurm/job_7/pids.current", "40")
    assert cgroup_limits(machine) == CgroupLimits("v2", 4 << 30, 1.5, 60)


def test_version_1(machine: FakeMachine) -> None:
    machine.put("/proc/self/cgroup", "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:name=systemd:/\n")
    machine.put("/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", str(1 << 30))
    machine.put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712")
    machine.put("/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "200000")
    machine.put("/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us", "100000")
    machine.put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1")
    assert cgroup_limits(machine) == CgroupLimits("v1", 1 << 30, 2.0, None)


def test_in_a_container_the_root_is_its_own_group(machine: FakeMachine) -> None:
    machine.put("/proc/self/cgroup", "0::/../../kubepods/pod1\n")
    machine.put("/sys/fs/cgroup/cgroup.controllers", "cpu memory")
    machine.put("/sys/fs/cgroup/memory.max", "1000")
    assert cgroup_limits(machine).memory_bytes == 1000
