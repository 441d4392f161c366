"""Slurm and PBS, inside and outside of jobs, answering and silent."""

from __future__ import annotations

from pathlib import Path

from tests.lab.doctor.fakes import FakeMachine

from hora.lab.doctor import schedulers

JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "4"}


def with_slurm(root: Path, **environ: str) -> FakeMachine:
    machine = FakeMachine(root, **environ)
    machine.programs |= {"srun", "sinfo"}
    machine.answer("srun --version", 0, "slurm-wlm 22.05.8\n")
    return machine


def test_none(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    assert [check.look(machine).status for check in schedulers.CHECKS] == ["not here"] * 2  # type: ignore[union-attr]


def test_slurm_outside_a_job(tmp_path: Path) -> None:
    machine = with_slurm(tmp_path)
    machine.answer("sinfo", 0, "debug* 2 idle\ngpu 4 mix\n")
    assert "partitions debug, gpu" in schedulers.slurm(machine).told
    machine.answer("sinfo", 1, "", "slurm_load_partitions: Unable to contact slurm controller (connect failure)")
    found = schedulers.slurm(machine)
    assert found.status == "note" and "Unable to contact" in found.told


def test_slurm_inside_a_job(tmp_path: Path) -> None:
    machine = with_slurm(tmp_path, **JOB)
    machine.answer("--overlap", 0)
    assert "srun starts a task" in schedulers.slurm(machine).told
    machine.answer("--overlap", None)
    found = schedulers.slurm(machine)
    assert found.status == "problem" and "2 nodes, 4 tasks" in found.told
    task = with_slurm(tmp_path, **JOB, SLURM_STEP_ID="0", SLURM_PROCID="3")
    assert "task 3 of a step" in schedulers.slurm(task).told
    assert schedulers.slurm(FakeMachine(tmp_path, **JOB)).status == "problem", "there is no srun"


def test_pbs(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, PBS_JOBID="9.server", PBS_NODEFILE="/var/spool/9")
    assert schedulers.pbs(machine).status == "problem"
    machine.put("/var/spool/9", "n1\nn1\nn2\n")
    assert schedulers.pbs(machine).told == "inside PBS job 9.server: 3 slots on 2 hosts"
    machine = FakeMachine(tmp_path)
    machine.programs |= {"qsub", "qstat"}
    assert schedulers.pbs(machine).status == "note"
    machine.answer("qstat", 0)
    assert schedulers.pbs(machine).status == "ok"
