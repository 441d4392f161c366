"""Allocations as Slurm, PBS and LSF describe them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hora.errors import EnvironmentUnfit
from hora.launch.planning.allocation import find_allocation
from hora.launch.planning.hosts import Host

SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "h[1-2],g07", "SLURM_TASKS_PER_NODE": "2(x2),1"}


def test_none() -> None:
    assert find_allocation({}) is None
    assert find_allocation({"SLURM_JOB_ID": "7"}) is None


def test_slurm() -> None:
    found = find_allocation(SLURM)
    assert found is not None and found.system == "Slurm"
    assert found.hosts == (Host("h1", 2), Host("h2", 2), Host("g07", 1))


@pytest.mark.parametrize("step", ["4294967291", "4294967290", ""])
def test_slurm_batch_script_and_shell_are_no_steps(step: str) -> None:
    assert find_allocation({**SLURM, "SLURM_STEP_ID": step, "SLURM_STEP_NUM_TASKS": "5"}) is not None


def test_hora_run_under_srun_would_start_many_jobs() -> None:
    with pytest.raises(EnvironmentUnfit, match="itself started by srun, in 4 tasks"):
        find_allocation({**SLURM, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"})
    assert find_allocation({**SLURM, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"}) is not None


@pytest.mark.parametrize(
    "more", [{"SLURM_TASKS_PER_NODE": "2"}, {"SLURM_TASKS_PER_NODE": "many"}, {"SLURM_JOB_NODELIST": "h[1-"}]
)
def test_slurm_that_makes_no_sense(more: dict[str, str]) -> None:
    with pytest.raises(EnvironmentUnfit, match="Slurm"):
        find_allocation({**SLURM, **more})


@pytest.mark.parametrize("variable", ["PBS_NODEFILE", "LSB_DJOB_HOSTFILE"])
def test_host_files(tmp_path: Path, variable: str) -> None:
    file = tmp_path / "nodes"
    file.write_text("n1\nn1\nn2\nn1\n")
    found = find_allocation({variable: str(file)})
    assert found is not None and found.hosts == (Host("n1", 3), Host("n2", 1))
    file.write_text("")
    with pytest.raises(EnvironmentUnfit, match="empty"):
        find_allocation({variable: str(file)})
    with pytest.raises(EnvironmentUnfit, match="cannot be read"):
        find_allocation({variable: str(tmp_path / "none")})


def test_lsf_without_a_file() -> None:
    found = find_allocation({"LSB_MCPU_HOSTS": "n1 4 n2 2"})
    assert found is not None and found.hosts == (Host("n1", 4), Host("n2", 2))
    with pytest.raises(EnvironmentUnfit, match="LSB_MCPU_HOSTS"):
        find_allocation({"LSB_MCPU_HOSTS": "n1 n2"})
