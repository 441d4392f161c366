"""What the experiments of `hora lab` have in common, on a command of its own."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from tests.launch.jobs import clean_environment, run_hora

from hora.cli.lab.flags import ExperimentFlags, experiment_flags
from hora.errors import UsageError
from hora.lab.records import open_experiment


@click.command()
@experiment_flags()
def small(lab: ExperimentFlags) -> None:
    with lab.book("sweep", "mnist: sweep", {}):
        pass


def test_a_label_is_kept_in_the_record_and_by_a_resume(tmp_path: Path) -> None:
    place = ["--runs", str(tmp_path), "--out", str(tmp_path / "made")]
    done = CliRunner().invoke(small, [*place, "--label", "before the change"])
    assert done.exit_code == 0, done.output
    assert open_experiment(tmp_path / "made").label == "before the change"
    CliRunner().invoke(small, ["--runs", str(tmp_path), "--resume", str(tmp_path / "made")])
    assert open_experiment(tmp_path / "made").label == "before the change"
    CliRunner().invoke(small, [*place, "--label", "after it"])
    assert open_experiment(tmp_path / "made").label == "after it"


def test_a_terminal_that_vanishes_does_not_end_an_experiment(tmp_path: Path) -> None:
    """As when an ssh connection breaks: what is written to it fails with EIO."""
    master, slave = pty.openpty()
    program = f"""
import os, select
from pathlib import Path
from hora.cli.progress import say
from hora.lab import records
gone = select.poll()
gone.register(1, 0)
with records.experiment("sweep", "t", {{}}, Path({str(tmp_path / "x")!r}), Path({str(tmp_path)!r})) as book:
    say("1/2 one")
    assert gone.poll(60_000)
    say("2/2 two")
    book.rows = [{{"workers": 1}}]
print("a table")
"""
    job = subprocess.Popen(
        [sys.executable, "-c", program], env=clean_environment(), stdin=slave, stdout=slave, stderr=slave,
        start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    try:
        assert b"1/2 one" in os.read(master, 100)
        os.close(master)
        assert job.wait(60) == 0
    finally:
        job.kill()
        job.wait()
    found = open_experiment(tmp_path / "x")
    assert found.state == "done" and found.rows == [{"workers": 1}]


@pytest.mark.parametrize(
    ("given", "nodes", "tasks", "expected"),
    [("", "h[1-2]", "2(x2)", "h1:2,h2:2"), ("a:1,b:1", "h[1-2]", "2(x2)", "a:1,b:1"), ("", "h1", "4", "")],
)
def test_an_experiment_takes_the_allocations_hosts(
    monkeypatch: pytest.MonkeyPatch, given: str, nodes: str, tasks: str, expected: str
) -> None:
    for name in ("SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    allocation = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": nodes, "SLURM_TASKS_PER_NODE": tasks}
    for name, value in allocation.items():
        monkeypatch.setenv(name, value)
    lab = ExperimentFlags(given, None, None, None, Path("runs"), None)
    assert lab.where() == expected


def test_an_allocation_smaller_than_asked_is_refused_before_the_first_trial(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And so are hosts: the largest job would fail when all others are done."""
    monkeypatch.delenv("SLURM_STEP_ID", raising=False)
    hosts = tmp_path / "hosts"
    hosts.write_text("a slots=1\nb slots=1\n")
    lab = ExperimentFlags("", str(hosts), None, None, Path("runs"), None)
    with pytest.raises(UsageError, match="3 workers are more than the hosts have slots: a:1,b:1 has 2"):
        lab.where(3)
    assert lab.where(2) == "a:1,b:1"
    asked = ("lab", "scaling", "mnist", "--workers", "1,2,8")
    allocation = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "h[1-2]", "SLURM_TASKS_PER_NODE": "2(x2)"}
    done = run_hora(*asked, cwd=tmp_path, **allocation)
    assert done.returncode == 3 and not (tmp_path / "runs").exists()
    assert done.stderr.startswith("hora: 8 workers are more than this Slurm allocation has tasks: h1:2,h2:2 has 4. Ask")
