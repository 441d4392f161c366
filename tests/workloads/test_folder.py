"""run.json: what a run says about itself, however it ends."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.workloads.tiny import Options, train

import hora.torch as hvd
from hora.engine import preempt
from hora.errors import BadData, NonFiniteError, UsageError
from hora.workloads import WorkloadOptions, folder
from hora.workloads.run_record import read_lines
from hora.workloads.synthetic.options import Options as SyntheticOptions
from hora.workloads.synthetic.train import train as train_synthetic


def go(out: Path, **given: Any) -> dict[str, Any]:
    try:
        return train(Options.of({"out": str(out), **given}))[0]
    finally:
        hvd.shutdown()
        preempt._forget()


def test_a_run_that_ends_well(tmp_path: Path) -> None:
    result = go(tmp_path, epochs=1, emulate_workers=2, batch=4)
    found = folder.read(tmp_path)
    assert (found.state, found.error, found.workload) == ("done", "", "tiny")
    assert (found.workers, found.emulated_workers, found.hosts, found.threads_per_worker) == (1, 2, 1, 1)
    assert found.options["batch"] == 4 and found.plan["workers"] == 2
    assert found.started < found.ended and found.versions["torch"] and found.host["cores"] >= 1
    clock = ("seconds", "images_per_s", "first_batch_s")
    assert {k: v for k, v in found.result.items() if k not in clock} == {
        k: v for k, v in result.items() if k not in clock
    }


def test_a_run_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORA_NONFINITE", "stop")
    with pytest.raises(NonFiniteError):
        go(tmp_path, fail_at=3)
    found = folder.read(tmp_path)
    assert found.state == "failed" and found.error.startswith("step 4: loss is nan on rank 0")
    assert found.result["steps"] == 3


def test_a_run_that_is_asked_to_leave_is_interrupted_and_goes_on(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        go(tmp_path, signal_at=3)
    assert folder.read(tmp_path).state == "interrupted"
    assert len(read_lines(tmp_path)[0]) == 4  # all that it did is there
    go(tmp_path, resume="auto")
    assert folder.read(tmp_path).state == "done"


def test_a_run_that_is_refused_does_not_touch_the_one_that_is_there(tmp_path: Path) -> None:
    go(tmp_path, epochs=1)
    before = (tmp_path / folder.FILE).read_bytes()
    with pytest.raises(UsageError, match="there is a run in"):
        go(tmp_path, epochs=2)
    assert (tmp_path / folder.FILE).read_bytes() == before


def test_the_synthetic_workload_keeps_a_record_too(tmp_path: Path) -> None:
    options = SyntheticOptions.of({"model": "mnist_horovod", "batch": 2, "max_steps": 7, "out": str(tmp_path)})
    result = train_synthetic(options)
    found, (steps, epochs) = folder.read(tmp_path), read_lines(tmp_path)
    assert found.state == "done" and found.result == json.loads(json.dumps(result))
    assert [line["step"] for line in steps] == list(range(1, 8)) and not epochs
    assert [line["samples"] for line in steps] == list(range(2, 16, 2))


@pytest.mark.parametrize("steps", [2, 3, 12, 25, 110, 200])
@pytest.mark.parametrize("form", ["horovod", "tf"])
def test_the_synthetic_workload_takes_no_more_steps_than_it_may(form: str, steps: int) -> None:
    made = SyntheticOptions.of({"form": form, "max_steps": steps})
    timed = made.num_batches if form == "tf" else made.iters * made.batches_per_iter
    assert made.warmup_batches + timed == min(steps, 110) and timed >= made.warmup_batches / 2


def git(place: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    return subprocess.run(
        ["git", "-C", str(place), *identity, *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_the_state_of_git_is_that_of_the_folder_it_was_started_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    assert folder.environment()["git"] == {}
    git(tmp_path, "init", "-b", "main")
    (tmp_path / "train.py").write_text("pass")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert folder.environment()["git"] == {"commit": commit, "branch": "main", "dirty": False}
    (tmp_path / "train.py").write_text("fail")
    (tmp_path / "new.txt").write_text("not of git")
    assert folder.environment()["git"]["dirty"] is True


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (None, "done"),
        (SystemExit(0), "done"),
        (SystemExit(75), "interrupted"),
        (SystemExit(3), "failed"),
        (KeyboardInterrupt(), "interrupted"),
        (RuntimeError(), "failed"),
    ],
    ids=["none", "exit0", "exit75", "exit3", "interrupt", "error"],
)
def test_what_ends_a_run_tells_its_state(error: BaseException | None, state: str) -> None:
    assert folder.ending(error)[0] == state


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "is empty"),
        (b"", "is not a record of Hora"),
        (b'{"format": 1, "workl', "is not a record of Hora"),
        (b"\xff\xfe", "is not a record of Hora"),
        (b'{"workload": "mnist"}', "missing required field"),
        (b"[1, 2]", "is not a record of Hora"),
    ],
    ids=["none", "empty", "torn", "bytes", "fields", "list"],
)
def test_a_record_that_is_not_whole_is_named(tmp_path: Path, content: bytes | None, said: str) -> None:
    if content is not None:
        (tmp_path / folder.FILE).write_bytes(content)
    with pytest.raises(BadData, match=said) as caught:
        folder.read(tmp_path)
    assert str(tmp_path) in str(caught.value)
    with pytest.raises(BadData, match="does not exist"):
        folder.read(tmp_path / "nowhere")


def test_a_record_begins_when_its_run_did(tmp_path: Path) -> None:
    """Not when it is made, which is after the workers have met and the model is there."""
    began = "2026-01-01T10:00:00.000Z"
    folder.RunNote(WorkloadOptions(out=str(tmp_path)), {}, workers=1, began=began)
    assert folder.read(tmp_path).started == began
