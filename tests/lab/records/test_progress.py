"""What an experiment says of how it goes, and that saying it never ends it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hora.lab import records
from hora.lab.records import ExperimentWriter, progress
from hora.lab.records.progress import Progress
from hora.lab.trial import Trial

TRIALS = [
    Trial(name=f"t{n}", workload="mnist", options={"batch": 50, "max_steps": 100 * n}) for n in (1, 2, 4)
]  # thought to take 16, 26 and 46 s


@pytest.fixture
def book(tmp_path: Path) -> Iterator[ExperimentWriter]:
    with records.experiment("throughput", "t", {}, tmp_path / "lab" / "e", tmp_path, []) as made:
        yield made


def ran(book: ExperimentWriter, trial: Trial, *seconds: float) -> None:
    assert book.progress is not None
    for each in seconds:
        book.progress.look(trial, book.folder / trial.name, each)
    book.progress.stop()


def test_how_long_it_takes_is_said_before_and_corrected(book: ExperimentWriter) -> None:
    told: list[str] = []
    made = Progress(book, TRIALS, told.append)
    made.begin("first")
    ran(book, TRIALS[0], 0.1, 16.0, 32.0)  # twice as long as was thought
    made.tell("fast")
    made.begin("second")
    ran(book, TRIALS[1], 52.0)
    made.tell("slow")
    made.begin("third")
    ran(book, TRIALS[2], 1.0)
    made.tell("failed")
    assert told[0].startswith("3 trials, about 1 min 28 s (a guess: 6 s to start a trial, 500 images/s a core; ")
    assert told[0].endswith(str(book.folder))
    assert told[1:] == [
        "1/3 first: fast; about 2 min 24 s left",
        "2/3 second: slow; about 1 min 32 s left",
        "3/3 third: failed",
    ]


def test_what_was_run_before_is_said_and_not_counted(book: ExperimentWriter) -> None:
    told: list[str] = []
    made = Progress(book, 3, told.append)  # which they will be, nobody knows
    made.begin("first")
    book.progress.stop()  # type: ignore[union-attr]
    made.tell("fast")
    made.begin("second")
    ran(book, TRIALS[0], 32.0)
    made.tell("slow")
    assert told[0] == "1/3 first: fast (from before)"
    assert told[1].startswith("2 trials, about 32 s (a guess") and told[2] == "2/3 second: slow; about 32 s left"


def test_what_is_drawn_while_a_trial_runs(book: ExperimentWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[list[str] | None] = []
    monkeypatch.setattr(progress, "_drawing", lambda: drawn.append)
    made = Progress(book, TRIALS, lambda line: None)
    made.begin("mnist, 2 workers")
    folder = book.folder / "t1"
    folder.mkdir()
    made.look(TRIALS[0], folder, 2.0)
    line = '{"step":%d,"epoch":0,"samples":50,"images_per_s":4812.0,"data_s":0.0}\n'
    (folder / "metrics.jsonl").write_text(line % 5)
    made.look(TRIALS[0], folder, 5.0)
    made.stop()
    assert drawn[0] == [
        "1/3 mnist, 2 workers",
        "starting; 2 s, about 14 s left",
        "all 3 trials: about 1 min 26 s left",
        f"log: {folder}/log.txt",
    ]
    assert drawn[1] is not None and drawn[1][1] == "step 5, 4,812 images/s; 5 s, about 11 s left" and drawn[2] is None


def test_what_cannot_be_drawn_ends_nothing(book: ExperimentWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(lines: list[str] | None) -> None:
        raise ValueError("no such terminal")

    monkeypatch.setattr(progress, "_drawing", lambda: fails)
    told: list[str] = []
    made = Progress(book, TRIALS[:1], told.append)
    made.begin("first")
    ran(book, TRIALS[0], 1.0, 2.0)
    made.tell("fast")
    assert told[-1] == "1/1 first: fast"
