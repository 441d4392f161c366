"""Trials side by side: each on its own hosts, all of them kept for the experiment; an interrupt ends all."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from hora.lab import trial as trials
from hora.lab.trial import Trial, TrialOutcome
from hora.lab.trial.parallel import run_parallel
from hora.launch.planning.hosts import parse_hosts

WANTED = [Trial(name=f"t{number}", workload="mnist", workers=2) for number in range(5)]


def test_as_many_at_once_as_there_are_lanes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together, where, most, now = threading.Barrier(2, timeout=30), [], 0, 0
    lock = threading.Lock()

    def run(trial: Trial, folder: Path, **given: object) -> TrialOutcome:
        nonlocal most, now
        with lock:
            now += 1
            most = max(most, now)
            where.append((trial.name, given["place"], folder))
        if trial.name in ("t0", "t1"):
            together.wait()  # or they would not be at once
        with lock:
            now -= 1
        return TrialOutcome(trial=trial, state="done", folder=str(folder))

    monkeypatch.setattr(trials, "run", run)
    said: list[str] = []
    run_parallel(WANTED, tmp_path, parse_hosts("h1:2,h2:2,h3:1"), said.append)
    assert most == 2 and {place for _, place, _ in where} == {"h1:2", "h2:2"}
    assert sorted(name for name, _, _ in where) == [trial.name for trial in WANTED]
    assert said[0] == "5 trials, 2 at a time: on h1:2; h2:2" and len(said) == 6
    where.clear()
    run_parallel(WANTED, tmp_path, parse_hosts("h1:3"), said.append)  # no room for two: the experiment runs them itself
    assert not where


def test_an_interrupt_reaches_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left, begun = [], threading.Event()

    def run(trial: Trial, folder: Path, *, look: object, **given: object) -> TrialOutcome:
        assert callable(look)
        if trial.name == "t0":
            assert begun.wait(30)
            raise KeyboardInterrupt
        begun.set()
        try:
            while True:
                look(0.0)
        except KeyboardInterrupt:
            left.append(trial.name)
            raise

    monkeypatch.setattr(trials, "run", run)
    with pytest.raises(KeyboardInterrupt):
        run_parallel(WANTED, tmp_path, parse_hosts("h1:2,h2:2"), lambda line: None)
    assert left == ["t1"]  # and those after it never began
