"""Folders as they are read: whole ones, and those that are not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.lab.records.made_up import HOST, write_experiment, write_outcome, write_run

from hora.errors import BadData
from hora.lab.records.files import Experiment, RunFolder, open_any, open_experiment, open_run, state_of


def test_a_run_and_all_that_is_in_its_folder(tmp_path: Path) -> None:
    write_outcome(write_run(tmp_path))
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step":21,"epoch":2,"samples":1300,"loss":0.5,"images_per_s":9.0,"data_s":0.1}\n{"step":22,"ep')
    for name in ("timeline.rank10.json", "timeline.json", "timeline.rank2.json"):
        (tmp_path / name).write_text("[]")
    (tmp_path / "log.txt").write_text("".join(f"line {number}\n" for number in range(50)))
    for path in (tmp_path, tmp_path / "run.json"):
        run = open_run(path)
        assert [line["epoch"] for line in run.epochs()] == [0, 1] and [line["step"] for line in run.steps()] == [21]
        outcome = run.outcome()
        assert outcome is not None and outcome.images_per_s == 900.0
        assert [path.name for path in run.timelines()] == [
            "timeline.json",
            "timeline.rank2.json",
            "timeline.rank10.json",
        ]
        assert run.log(2) == ["line 48", "line 49"]


def test_a_trial_that_ended_before_its_run_began(tmp_path: Path) -> None:
    write_outcome(tmp_path, state="out of memory", error="MemoryError")
    run = open_run(tmp_path)
    assert (run.file.workload, run.file.workers, run.file.error) == ("mnist", 2, "MemoryError")


def test_either_is_opened(tmp_path: Path) -> None:
    assert isinstance(open_any(write_run(tmp_path / "run")), RunFolder)
    assert isinstance(open_any(write_experiment(tmp_path / "experiment") / "experiment.json"), Experiment)
    (tmp_path / "empty").mkdir()
    for place, said in (("empty", "is empty"), ("nowhere", "does not exist"), (".", "holds no record")):
        with pytest.raises(BadData, match=said):
            open_any(tmp_path / place)


@pytest.mark.parametrize("content", ["", "{", '{"kind": 3}', "null"])
def test_an_experiment_that_is_not_whole(tmp_path: Path, content: str) -> None:
    (tmp_path / "experiment.json").write_text(content)
    with pytest.raises(BadData, match=r"experiment\.json is not a record of Hora"):
        open_experiment(tmp_path)


def test_one_that_says_it_is_running(tmp_path: Path) -> None:
    mine = {"state": "running", "pid": os.getpid(), "ended": ""}
    later = "2126-01-01T00:00:00.000Z"  # this process was there before
    assert state_of(open_run(write_run(tmp_path / "a", **mine, started=later)).file) == "running"
    earlier = "2001-01-01T00:00:00.000Z"  # it got the number of one that is gone
    assert state_of(open_run(write_run(tmp_path / "b", **mine, started=earlier)).file) == "died"
    elsewhere = {**HOST, "hostname": "another"}
    assert state_of(open_run(write_run(tmp_path / "c", **mine, started=earlier, host=elsewhere)).file) == "running"
