"""What the experiments of `hora lab` have in common, on a command of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from hora.cli.lab.flags import experiment_flags, folder_of, hosts_here, kept
from hora.lab.records import experiment, open_experiment


@click.command()
@experiment_flags
def small(sets: Any, out: Path | None, resume: Path | None, runs: Path, json_file: Path | None) -> None:
    with experiment("sweep", "mnist: sweep", {}, folder_of(out, resume), runs) as book, kept(book):
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
    assert hosts_here(given) == expected
