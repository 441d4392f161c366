"""Trials as experiments run them: real runs of `hora train`, their numbers, their failures, their ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from tests.launch.jobs import clean_environment, wait_until

from hora.errors import BadData, UsageError
from hora.lab import trial as trial_module
from hora.lab.trial import Trial, TrialOutcome, command_of, load, run, turns
from hora.workloads import folder as run_folder
from hora.workloads.turns import MODES

DEADLINE_S = 120.0
SMALL: dict[str, Any] = {"model": "mnist_horovod", "batch": 4, "max_steps": 16}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes long to start workers."""
    monkeypatch.setenv("HORA_START_TIMEOUT", str(DEADLINE_S))
    for name in [name for name in os.environ if name.startswith("HORA_TEST")]:
        monkeypatch.delenv(name)


def step_s(folder: Path) -> list[float]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [4 / line["images_per_s"] for line in lines]


def test_each_by_itself_on_the_same_cores(tmp_path: Path) -> None:
    """The limit without communication: the sum over workers that know nothing of each other."""
    trial = Trial(name="limit", workload="synthetic", workers=2, independent=True, options=SMALL)
    before = datetime.now(UTC)
    found = run(trial, tmp_path / "limit")
    assert found.state == "done", (tmp_path / "limit" / "log.txt").read_text()
    places = [tmp_path / "limit", tmp_path / "limit" / "worker-1"]
    assert [run_folder.read(place).workers for place in places] == [1, 1]
    assert len({run_folder.read(place).pid for place in places}) == 2
    steady = [step_s(place)[5:] for place in places]
    assert found.warmup_steps == 5 and found.step_s == pytest.approx(steady[0])
    assert found.rank_step_s == pytest.approx({rank: np.median(part) for rank, part in enumerate(steady)})
    assert found.images_per_s == pytest.approx(sum(4 / np.median(part) for part in steady))
    assert found.images_per_s_low <= found.images_per_s <= found.images_per_s_high
    assert found.images_per_s_study == pytest.approx(sum(4 / np.mean(step_s(place)) for place in places))
    ran = run_folder.read(places[0])  # the first batch is counted from the start of the child: imports are in it
    child_began = datetime.fromisoformat(ran.first_step) - timedelta(seconds=found.first_batch_s)
    assert before <= child_began < datetime.fromisoformat(ran.started) and found.first_batch_s < found.seconds
    assert found.memory_bytes > 50 << 20 and 0 < found.cpu_share <= 1.1

    written = (tmp_path / "limit" / "run.json").stat().st_mtime_ns
    again = run(trial, tmp_path / "limit")
    assert (tmp_path / "limit" / "run.json").stat().st_mtime_ns == written
    assert again == load(tmp_path / "limit") and again.images_per_s == found.images_per_s


def test_by_turns_all_three_are_of_the_same_processes(tmp_path: Path) -> None:
    """Alone, in step and together, of both ranks; the trial's own figures are those together, and each is to be had."""
    trial = Trial(name="turns", workload="synthetic", workers=2, by_turns=True, options={**SMALL, "max_steps": 36})
    found = run(trial, tmp_path / "turns")
    assert found.state == "done", (tmp_path / "turns" / "log.txt").read_text()
    by_turns = found.result["by_turns"]
    assert all(len(ranks) == 2 and {len(steps) for steps in ranks} == {8} for ranks in map(by_turns.get, MODES))
    assert found.step_s == by_turns["together"][0]
    assert found.images_per_s == pytest.approx(8 / np.median(by_turns["together"][0]))
    limit = turns.of(found, "limit")
    assert limit.rank_step_s == pytest.approx({rank: np.median(part) for rank, part in enumerate(by_turns["limit"])})
    assert limit.images_per_s == pytest.approx(sum(4 / np.median(part) for part in by_turns["limit"]))
    assert turns.of(found, "in step").step_s == by_turns["in step"][0] and 0 < turns.meeting_s(found) < 10


def test_too_large_a_batch_is_a_limit_that_is_recorded(tmp_path: Path) -> None:
    trial = Trial(name="huge", workload="synthetic", options={"model": "mnist", "batch": 10**10, "max_steps": 4})
    found = run(trial, tmp_path)
    assert found.state == "out of memory" and "allocate" in found.error, (tmp_path / "log.txt").read_text()
    assert load(tmp_path).state == "out of memory"


def test_time_is_up_and_what_is_known_is_kept(tmp_path: Path) -> None:
    trial = Trial(name="late", workload="synthetic", options={**SMALL, "max_steps": 0}, timeout_s=0.2)
    found = run(trial, tmp_path)
    assert (found.state, found.error) == ("timeout", "not done after 0 s")
    assert found == load(tmp_path) or np.isnan(found.images_per_s)
    assert not processes_at(tmp_path)


def test_a_failure_is_one_line_and_is_tried_again(tmp_path: Path) -> None:
    stale = tmp_path / "metrics.jsonl"
    stale.write_text('{"step":1,"epoch":0,"samples":4,"images_per_s":1.0,"data_s":0.0}\n')
    trial = Trial(name="none", workload="mnist", options={"data": str(tmp_path / "nowhere")})
    found = run(trial, tmp_path)
    assert found.state == "failed" and found.error.startswith(f"there is no folder {tmp_path / 'nowhere'}")
    assert not stale.exists() and found.step_s == []
    assert trial_module._answer(trial, tmp_path) is None


def test_an_interrupt_ends_the_child_and_is_recorded(tmp_path: Path) -> None:
    program = f"""
import pathlib
from hora.lab.trial import Trial, run
run(Trial(name="a", workload="synthetic", options={{"model": "mnist_horovod", "batch": 4, "iters": 10**6}}),
    pathlib.Path({str(tmp_path)!r}))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env=clean_environment(HORA_START_TIMEOUT=str(DEADLINE_S)),
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )
    try:
        metrics = tmp_path / "metrics.jsonl"
        wait_until(lambda: metrics.exists() and metrics.stat().st_size > 0, DEADLINE_S, "the first steps")
        process.send_signal(signal.SIGINT)
        process.wait(DEADLINE_S)
    finally:
        process.kill()
        process.wait()
    found = load(tmp_path)
    assert (found.state, found.error) == ("interrupted", "interrupted") and found.seconds > 0
    assert not processes_at(tmp_path)


def processes_at(folder: Path) -> list[str]:
    """Those that have the folder on their command line."""
    found = []
    for process in psutil.process_iter():
        try:
            words = " ".join(process.cmdline())
            if str(folder) in words and process.status() != psutil.STATUS_ZOMBIE and process.pid != os.getpid():
                found.append(words)
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"workload": "cifar100"}, "there is no workload 'cifar100'"),
        ({"workload": "mnist", "options": {"batch": 0}}, "--batch 0"),
        ({"workload": "mnist", "options": {"speed": 9}}, "unknown field `speed`"),
    ],
    ids=["workload", "value", "option"],
)
def test_wrong_trials_are_refused_before_anything_starts(tmp_path: Path, given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        run(Trial(name="a", **given), tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_the_command_has_all_that_was_asked_for(tmp_path: Path) -> None:
    trial = Trial(
        name="a", workload="mnist", workers=4, hosts="h1:2,h2:2", threads_per_worker=3, inter_threads=1,
        transport="mpi", options={"lr": 1e-4, "tensorboard": False},
    )  # fmt: skip
    words = command_of(trial, tmp_path)[3:]
    assert words == [
        "train", "mnist", "-np", "4", "-H", "h1:2,h2:2", "--on", "mpi", "--threads-per-worker", "3", "--lr=0.0001",
        "--no-tensorboard", f"--out={tmp_path}", f"--json={tmp_path / 'result.json'}", "--overwrite",
        "--inter-threads=1",
    ]  # fmt: skip


def test_the_command_leaves_out_what_the_workload_has_no_use_for(tmp_path: Path) -> None:
    """Experiments ask every workload alike not to validate and not to save."""
    trial = Trial(name="a", workload="synthetic", options={**trial_module.SPEED_ONLY, "epochs": 9.0, "max_steps": 3})
    assert "--max-steps=3" in command_of(trial, tmp_path)
    assert not {"--no-validate", "--no-save", "--epochs=9.0"} & set(command_of(trial, tmp_path))


def test_an_outcome_with_unknown_numbers_is_read_back(tmp_path: Path) -> None:
    made = TrialOutcome(
        trial=Trial(name="a", workload="mnist"), state="failed", folder=str(tmp_path), rank_step_s={3: 0.5}
    )
    run_folder.write_json(tmp_path / "outcome.json", made)
    found = load(tmp_path)
    assert np.isnan(found.images_per_s) and found.rank_step_s == {3: 0.5} and found.trial == made.trial
    with pytest.raises(BadData, match=r"has no outcome.json|is empty"):
        load(tmp_path.parent)
