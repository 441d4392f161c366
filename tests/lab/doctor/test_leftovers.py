"""Processes and files that no job owns any more."""

from __future__ import annotations

from pathlib import Path

from tests.lab.doctor.fakes import FakeMachine

from hora.lab.doctor import leftovers


def with_process(machine: FakeMachine, pid: int, command: str, job: str = "") -> None:
    machine.put(f"/proc/{pid}/cmdline", command.replace(" ", "\0") + "\0")
    machine.put(f"/proc/{pid}/environ", "HOME=/\0" + (f"HORA_JOB={job}\0" if job else ""))
    machine.put(f"/proc/{pid}/stat", "")


def test_a_job_that_runs_is_left_alone(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    with_process(machine, 10, "python train.py", job="aa")
    with_process(machine, 11, "python -I -S /x/launch/guardian.py aa")
    found = leftovers.processes(machine)
    assert found.status == "ok" and "running now: 1" in found.told


def test_a_job_without_its_guardian(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, HORA_JOB="mine")
    with_process(machine, 10, "python train.py", job="aa")
    with_process(machine, 12, "hora doctor", job="mine")
    with_process(machine, 13, "bash")
    found = leftovers.processes(machine)
    assert found.status == "warning" and found.fix == "kill 10"


def test_files(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    with_process(machine, 10, "python train.py")
    machine.put("/dev/shm/torch_10_123_0", "")
    machine.put("/dev/shm/other", "")
    assert leftovers.files(machine).status == "ok"
    machine.put("/dev/shm/torch_99_123_0", "")
    found = leftovers.files(machine)
    assert found.status == "warning" and found.fix == "rm /dev/shm/torch_99_123_0"
