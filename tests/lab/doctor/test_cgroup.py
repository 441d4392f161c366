"""The tightest limit on the way up, in either version, and inside a container."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.lab.doctor.fakes import FakeMachine

from hora.lab.doctor.cgroup import Limits, limits


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path)


def test_none(machine: FakeMachine) -> None:
    assert limits(machine) == Limits()


def test_version_2_takes_the_tightest_on_the_way_up(machine: FakeMachine) -> None:
    machine.put("/proc/self/cgroup", "0::/slurm/job_7/step_0\n")
    machine.put("/sys/fs/cgroup/cgroup.controllers", "cpu memory pids")
    machine.put("/sys/fs/cgroup/slurm/job_7/memory.max", str(4 << 30))
    machine.put("/sys/fs/cgroup/slurm/job_7/step_0/memory.max", "max")
    machine.put("/sys/fs/cgroup/slurm/job_7/step_0/cpu.max", "150000 100000")
    machine.put("/sys/fs/cgroup/slurm/cpu.max", "max 100000")
    machine.put("/sys/fs/cgroup/slurm/job_7/pids.max", "100")
    machine.put("/sys/fs/cgroup/slurm/job_7/pids.current", "40")
    assert limits(machine) == Limits("v2", 4 << 30, 1.5, 60)


def test_version_1(machine: FakeMachine) -> None:
    machine.put("/proc/self/cgroup", "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:name=systemd:/\n")
    machine.put("/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", str(1 << 30))
    machine.put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712")
    machine.put("/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "200000")
    machine.put("/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us", "100000")
    machine.put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1")
    assert limits(machine) == Limits("v1", 1 << 30, 2.0, None)


def test_in_a_container_the_root_is_its_own_group(machine: FakeMachine) -> None:
    machine.put("/proc/self/cgroup", "0::/../../kubepods/pod1\n")
    machine.put("/sys/fs/cgroup/cgroup.controllers", "cpu memory")
    machine.put("/sys/fs/cgroup/memory.max", "1000")
    assert limits(machine).memory_bytes == 1000
