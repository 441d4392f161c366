"""Starting by srun, with a stand-in that starts a task a node here. Real Slurm: ``tests/cluster``."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest
from tests.launch.jobs import python, run_hora

ALLOCATION = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "h[1-2]", "SLURM_TASKS_PER_NODE": "2(x2)"}
STAND_IN = f"""#!{sys.executable}
import os, subprocess, sys
options = [word for word in sys.argv[1:] if word.startswith("--")]
command = sys.argv[1 + len(options):]
given = dict(option.partition("=")[::2] for option in options)
assert given["--ntasks-per-node"] == "1" and "--overlap" in given and given["--export"] == "ALL", given
nodes = given["--nodelist"].split(",")
assert int(given["--nodes"]) == int(given["--ntasks"]) == len(nodes)
data = sys.stdin.buffer.read()
tasks = []
for node in nodes:
    env = {{**os.environ, "SLURMD_NODENAME": node, "SLURM_NODEID": "9"}}
    tasks.append(subprocess.Popen(command, stdin=subprocess.PIPE, env=env))
for task in tasks:
    task.stdin.write(data)
    task.stdin.close()
sys.exit(max(task.wait() for task in tasks))
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    return make(tmp_path, STAND_IN)


def make(tmp_path: Path, text: str) -> str:
    srun = tmp_path / "srun"
    srun.write_text(text)
    srun.chmod(srun.stat().st_mode | stat.S_IXUSR)
    return f"{tmp_path}:/usr/bin:/bin"


def test_a_job_in_an_allocation(path: str) -> None:
    names = ("HORA_RANK", "HORA_HOSTNAME", "OTHER", "SLURM_NODEID")
    program = f"import os; print(*(os.environ.get(n) for n in {names}))"
    done = run_hora("run", *python(program), PATH=path, OTHER="kept", SLURM_NODEID="0", **ALLOCATION)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[0] == "hora: Slurm allocation: 4 workers on h1:2,h2:2, started by srun"
    lines = sorted(line.partition(":")[2] for line in done.stdout.splitlines())
    assert lines == ["0 h1 kept 9", "1 h1 kept 9", "2 h2 kept 9", "3 h2 kept 9"]


def test_srun_that_refuses(tmp_path: Path) -> None:
    path = make(tmp_path, "#!/bin/sh\necho 'srun: error: Unable to create step: Invalid account' >&2\nexit 1\n")
    done = run_hora("run", "true", PATH=path, **ALLOCATION)
    assert done.returncode == 3
    assert "h1, h2: srun said: srun: error: Unable to create step: Invalid account." in done.stderr


def test_no_srun(tmp_path: Path) -> None:
    done = run_hora("run", "-np", "4", "--on", "slurm", "/bin/true", PATH=str(tmp_path), **ALLOCATION)
    assert done.returncode == 3 and "'srun' could not be started" in done.stderr


def test_too_many_tasks(path: str) -> None:
    done = run_hora("run", "-np", "5", "true", PATH=path, **ALLOCATION)
    assert done.returncode == 3 and "h1:2,h2:2 has 4" in done.stderr and len(done.stderr.splitlines()) == 1


def test_dry_run(path: str) -> None:
    done = run_hora("run", "--dry-run", "true", PATH=path, **ALLOCATION)
    assert done.returncode == 0
    assert "on: slurm" in done.stdout and "agent on h1, h2: srun --nodes=2" in done.stdout
