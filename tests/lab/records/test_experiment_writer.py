"""Experiments under way: written after every trial, gone on with, interrupted, killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.launch.jobs import clean_environment, wait_until

from hora.errors import BadData, UsageError
from hora.lab import records, trial
from hora.lab.records.files import state_of
from hora.lab.trial import Trial, TrialOutcome

STARTED = """
import pathlib, sys, time
from hora.lab import records
with records.experiment("sweep", "t", {}, pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])) as book:
    book.rows = [{"workers": 1}]
    book.write()
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def instead(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Trials are not run, only counted; one called 'stop' is interrupted."""
    ran: list[str] = []

    def run(wanted: Trial, folder: Path, *, look: object, place: str = "") -> TrialOutcome:
        ran.append(f"{wanted.name} in {folder.parent.name}")
        if wanted.name == "stop":
            raise KeyboardInterrupt
        return TrialOutcome(trial=wanted, state="done", folder=str(folder), images_per_s=float("nan"))

    monkeypatch.setattr(trial, "run", run)
    return ran


def test_an_experiment_from_begin_to_end(tmp_path: Path, instead: list[str]) -> None:
    runs = tmp_path / "runs"
    with records.experiment("sweep", "mnist", {"workload": "mnist"}, None, runs, ["hora", "lab", "sweep"]) as book:
        during = records.open_experiment(book.folder)
        assert (during.state, during.pid, during.trials) == ("running", os.getpid(), [])
        assert state_of(during) == "running"
        book.run(Trial(name="a", workload="mnist"))
        book.rows.append({"workers": 1, "images_per_s": float("nan")})
        book.findings.append({"kind": "input", "gain": 0.5})
        book.notes.append("the data is generated")
        book.run(Trial(name="b", workload="mnist"))
        assert records.open_experiment(book.folder).trials == ["a", "b"]
    found = records.open_experiment(book.folder)
    assert (found.state, found.error, found.kind, found.title) == ("done", "", "sweep", "mnist")
    assert found.rows == [{"workers": 1, "images_per_s": None}] and found.notes == ["the data is generated"]
    assert found.started < found.ended and found.versions["hora"] and found.command == ["hora", "lab", "sweep"]
    assert book.folder.parent == runs / "lab" and book.folder.name.startswith("sweep-2")
    assert [Path(entry.folder) for entry in records.scan(runs)] == [book.folder]
    assert instead == ["a in trials", "b in trials"] and set(book.outcomes) == {"a", "b"}


def test_the_command_is_what_was_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However hora was started: `python -m hora` has the path of a file there."""
    monkeypatch.setattr(sys, "argv", ["/some/where/hora/__main__.py", "lab", "scaling", "mnist"])
    with records.experiment("scaling", "mnist", {}, tmp_path / "a", tmp_path) as book:
        pass
    assert records.open_experiment(book.folder).command == ["hora", "lab", "scaling", "mnist"]


def test_two_in_one_second_have_two_folders(tmp_path: Path) -> None:
    folders = set()
    for _ in range(3):
        with records.experiment("sweep", "", {}, None, tmp_path) as book:
            folders.add(book.folder)
    assert len(folders) == 3


def test_an_interrupted_one_keeps_what_it_has_and_goes_on(tmp_path: Path, instead: list[str]) -> None:
    out = tmp_path / "mine"
    with pytest.raises(KeyboardInterrupt), records.experiment("sweep", "", {}, out, tmp_path) as book:
        book.run(Trial(name="a", workload="mnist"))
        book.rows = [{"workers": 1}]
        book.run(Trial(name="stop", workload="mnist"))
    first = records.open_experiment(out)
    assert (first.state, first.rows, first.trials) == ("interrupted", [{"workers": 1}], ["a", "stop"])
    with records.experiment("sweep", "", {}, out, tmp_path) as book:
        book.run(Trial(name="a", workload="mnist"))
    again = records.open_experiment(out)
    assert (again.state, again.error, again.started) == ("done", "", first.started)
    assert len(records.scan(tmp_path)) == 1


def test_a_failed_one_says_why(tmp_path: Path) -> None:
    with pytest.raises(BadData), records.experiment("sweep", "", {}, tmp_path / "a", tmp_path):
        raise BadData("there is no data")
    found = records.open_experiment(tmp_path / "a")
    assert (found.state, found.error) == ("failed", "there is no data")


def test_what_would_mix_is_refused(tmp_path: Path, instead: list[str]) -> None:
    with records.experiment("sweep", "", {}, tmp_path / "a", tmp_path) as book:
        book.run(Trial(name="a", workload="mnist"))
        with pytest.raises(UsageError, match="two trials are called 'a'"):
            book.run(Trial(name="a", workload="cifar10"))
        with pytest.raises(UsageError, match="cannot be the name of a trial"):
            book.run(Trial(name="../a", workload="mnist"))
        with (
            pytest.raises(UsageError, match="another process is using the experiment"),
            records.experiment("sweep", "", {}, tmp_path / "a", tmp_path),
        ):
            pass
    with (
        pytest.raises(UsageError, match="holds a sweep experiment"),
        records.experiment("study", "", {}, tmp_path / "a", tmp_path),
    ):
        pass
    assert records.open_experiment(tmp_path / "a").state == "done"


@pytest.mark.parametrize(("number", "state"), [(signal.SIGKILL, "died"), (signal.SIGTERM, "interrupted")])
def test_one_that_is_killed_leaves_whole_records(tmp_path: Path, number: signal.Signals, state: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STARTED, str(tmp_path / "a"), str(tmp_path)], env=clean_environment(),
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        assert state_of(records.open_experiment(tmp_path / "a")) == "running"
        process.send_signal(number)
        process.wait(60)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    found = records.open_experiment(tmp_path / "a")
    wait_until(lambda: state_of(found) == state)
    assert found.rows == [{"workers": 1}] and len(records.scan(tmp_path)) == 1
    with records.experiment("sweep", "", {}, tmp_path / "a", tmp_path):  # the lock died with it
        pass
