"""What is chosen from what was asked for and what there is."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from hora.errors import EnvironmentUnfit, UsageError
from hora.launch.planning.hosts import Host
from hora.launch.planning.pick import merge_here, pick

SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "h[1-2]", "SLURM_TASKS_PER_NODE": "2(x2)"}
HERE = socket.gethostname()


@pytest.mark.parametrize(
    ("env", "asked", "on", "workers"),
    [
        ({}, {"np": 2}, "local", ["localhost"] * 2),
        ({}, {"np": "auto"}, "local", ["localhost"] * len(os.sched_getaffinity(0))),
        ({}, {"hosts": "h1:2,h2:1"}, "ssh", ["h1", "h1", "h2"]),
        ({}, {"hosts": "h1:2,h2:1", "np": "auto"}, "ssh", ["h1", "h1", "h2"]),
        ({}, {"hosts": "h1:2,h2:1", "on": "mpi"}, "mpi", ["h1", "h1", "h2"]),
        ({}, {"hosts": f"localhost:1,{HERE}:2"}, "local", ["localhost"] * 3),
        ({}, {"hosts": "localhost:2,h2:2", "np": 2}, "local", ["localhost"] * 2),
        ({}, {"hosts": f"localhost:1,h2:1,{HERE}:1"}, "ssh", ["localhost", "localhost", "h2"]),
        ({}, {"on": "ray"}, "ray", ["r1", "r2"]),
        (SLURM, {}, "slurm", ["h1", "h1", "h2", "h2"]),
        (SLURM, {"np": 3}, "slurm", ["h1", "h1", "h2"]),
        (SLURM, {"np": "auto"}, "slurm", ["h1", "h1", "h2", "h2"]),
        (SLURM, {"hosts": "h2:1"}, "slurm", ["h2"]),
        (SLURM, {"hosts": "elsewhere:1"}, "ssh", ["elsewhere"]),
        (SLURM, {"on": "mpi"}, "mpi", ["h1", "h1", "h2", "h2"]),
        (SLURM, {"on": "local", "np": 2}, "local", ["localhost"] * 2),
        ({**SLURM, "SLURM_JOB_NODELIST": HERE, "SLURM_TASKS_PER_NODE": "3"}, {}, "local", [HERE] * 3),
        ({"LSB_MCPU_HOSTS": "n1 1 n2 1"}, {}, "ssh", ["n1", "n2"]),
    ],
)
def test_choices(env: dict[str, str], asked: dict[str, Any], on: str, workers: list[str]) -> None:
    choice = pick(env, **asked, ray_hosts=lambda: (Host("r1", 1), Host("r2", 1)))
    assert (choice.on, [worker.host for worker in choice.plan.workers]) == (on, workers)


def test_an_allocation_is_told_of() -> None:
    assert pick(SLURM, np=3).why == "Slurm allocation: 3 workers on h1:2,h2:1, started by srun"
    assert pick({}, hosts="h1:2").why == ""


def test_pbs(tmp_path: Path) -> None:
    (tmp_path / "nodes").write_text("n1\nn2\n")
    choice = pick({"PBS_NODEFILE": str(tmp_path / "nodes")})
    assert choice.on == "ssh" and choice.why.startswith("PBS allocation: 2 workers on n1:1,n2:1")


def test_more_than_the_allocation_has() -> None:
    with pytest.raises(EnvironmentUnfit, match=r"-np 9 .* h1:2,h2:2 has 4\. .*--ntasks.*-np 4"):
        pick(SLURM, np=9)


@pytest.mark.parametrize("asked", [{"on": "slurm", "np": 2}, {"on": "local", "hosts": "h1:2"}])
def test_what_cannot_be(asked: dict[str, Any]) -> None:
    with pytest.raises(EnvironmentUnfit, match=f"--on {asked['on']}"):
        pick({}, **asked)


def test_nothing_is_said() -> None:
    with pytest.raises(UsageError, match="-np N"):
        pick({})


def test_this_machine_by_several_names() -> None:
    hosts = [Host("h2", 1), Host(HERE, 1), Host("127.0.0.1", 2), Host("localhost", 3)]
    assert merge_here(hosts) == (Host("h2", 1), Host(HERE, 6))
