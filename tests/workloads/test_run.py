"""A run that is interrupted, resumed, resized or fed with nonsense."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.launch.jobs import clean_environment, wait_until
from tests.workloads.tiny import SAMPLES, Options, train

import hora.torch as hvd
from hora.checkpoint import CheckpointStore
from hora.config import env
from hora.engine import preempt
from hora.errors import DamagedCheckpoint, NonFiniteError, UsageError
from hora.workloads.precision import Precision

ROOT = Path(__file__).resolve().parents[2]
State = dict[str, torch.Tensor]


def go(out: Path, **given: Any) -> tuple[dict[str, Any], State]:
    """Train in this process, with whatever a run leaves in it taken away again."""
    try:
        return train(Options.of({"out": str(out), **given}))
    finally:
        hvd.shutdown()
        preempt._forget()


def lines(out: Path, *leave_out: str) -> list[dict[str, Any]]:
    """The record, without what depends on the clock."""
    left = {"images_per_s", "data_s", "epoch_s", "train_s", *leave_out}
    return [
        {key: value for key, value in json.loads(line).items() if key not in left}
        for line in (out / "metrics.jsonl").read_text().splitlines()
    ]


def assert_same(found: State, expected: State) -> None:
    assert {name for name in expected if not torch.equal(found[name], expected[name])} == set()


KINDS: dict[str, dict[str, Any]] = {
    "alone": {},
    "emulated": {"emulate_workers": 3, "batch": 4, "optimizer": "adam", "lr": 0.01},
    "scaled": {"precision": "fp16", "optimizer": "adam", "lr": 0.01},
    "accumulating": {"accumulate": 3, "batch": 4, "last": "keep", "precision": "bf16"},
}


@pytest.mark.parametrize("kind", ["alone", "emulated", "scaled", pytest.param("accumulating", marks=pytest.mark.bf16)])
def test_interrupted_or_not_the_bits_are_the_same(tmp_path: Path, kind: str) -> None:
    """At the end of an epoch, in the middle of one by a signal, and in the middle of one because of --max-steps."""
    given = {"epochs": 3, **KINDS[kind]}
    result, expected = go(tmp_path / "whole", **given)

    out = tmp_path / "epoch by epoch"
    for epochs in (1, 2, 3):
        again, state = go(out, resume="auto", **{**given, "epochs": epochs})
    assert_same(state, expected)
    assert lines(out) == lines(tmp_path / "whole")
    assert {k: again[k] for k in ("steps", "samples", "val_loss")} == {
        k: result[k] for k in ("steps", "samples", "val_loss")
    }

    out = tmp_path / "signal"
    middle = result["steps"] // 2 + 1
    with pytest.raises(SystemExit) as left:
        go(out, signal_at=middle, **given)
    assert left.value.code == 75
    latest = CheckpointStore(out).latest()
    assert latest and latest.path.name == f"step-{middle + 1:08d}.pt"
    _, state = go(out, resume="auto", **given)
    assert_same(state, expected)
    assert [line["loss"] for line in lines(out)][-1] == pytest.approx(lines(tmp_path / "whole")[-1]["loss"], rel=1e-12)
    assert lines(out, "loss", "accuracy") == lines(
        tmp_path / "whole", "loss", "accuracy"
    )  # means are added up by parts

    out = tmp_path / "time"
    ended, _ = go(out, max_minutes=1e-9, **given)
    assert ended["steps"] == 1 and CheckpointStore(out).latest() is not None and "val_loss" in ended
    _, state = go(out, resume="auto", **given)
    assert_same(state, expected)

    out = tmp_path / "steps"
    go(out, max_steps=3, **given)
    _, state = go(out, resume="auto", **given)
    assert_same(state, expected)


def test_in_float16_the_loss_is_scaled_and_a_step_that_overflows_is_left_out(tmp_path: Path) -> None:
    _, exact = go(tmp_path / "a", epochs=1)
    result, scaled = go(tmp_path / "b", epochs=1, precision="fp16")
    kept = torch.load(result["checkpoint"], weights_only=True)["scaler"]
    assert kept["scale"] > 1 and kept["_growth_tracker"] == result["steps"]  # no step was left out
    for name in ("fc1.weight", "fc2.weight"):
        torch.testing.assert_close(scaled[name], exact[name], rtol=0.05, atol=0.02)
    precision = Precision("fp16", torch.device("cpu"))
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], 0.1)
    for factor in (1e38, 1.0):  # the first overflows once it is scaled
        optimizer.zero_grad()
        precision.backward((weight * factor).sum())
        precision.step(optimizer)
    assert weight.item() == pytest.approx(0.9) and precision.state()["scale"] == 2.0**15


def test_a_schedule_may_be_longer_than_the_run(tmp_path: Path) -> None:
    given = {"decay": "cosine", "batch": 16}
    _, expected = go(tmp_path / "whole", epochs=3, **given)
    for epochs in (1, 2, 3):
        _, state = go(tmp_path / "parts", epochs=epochs, schedule_epochs=3, resume="auto", **given)
    assert_same(state, expected)
    with pytest.raises(UsageError, match="--schedule-epochs 2 is less than --epochs 3"):
        go(tmp_path / "less", epochs=3, schedule_epochs=2, **given)


def test_a_signal_at_the_last_step_of_an_epoch_leaves_only_its_validation(tmp_path: Path) -> None:
    result, expected = go(tmp_path / "whole", epochs=2)
    last = result["steps"] // 2 - 1
    with pytest.raises(SystemExit):
        go(tmp_path / "a", epochs=2, signal_at=last)
    _, state = go(tmp_path / "a", epochs=2, resume="auto")
    assert_same(state, expected)
    assert [line.get("val_loss") for line in lines(tmp_path / "a")] == [
        line.get("val_loss") for line in lines(tmp_path / "whole")
    ]


def test_a_run_that_has_ended_is_not_run_again(tmp_path: Path) -> None:
    for epochs in (1, 0.5):
        out = tmp_path / str(epochs)
        result, state = go(out, epochs=epochs, emulate_workers=2)
        assert_same(torch.load(result["checkpoint"], weights_only=True)["model"], state)
        again, same = go(out, epochs=epochs, emulate_workers=2, resume="auto")
        assert_same(same, state)
        assert again["val_loss"] == result["val_loss"] and again["steps"] == result["steps"]
        assert len(lines(out)) == result["steps"] + 1


def test_a_checkpoint_is_a_plain_torch_file(tmp_path: Path) -> None:
    result, state = go(tmp_path, epochs=1, emulate_workers=2)
    content = torch.load(result["checkpoint"], weights_only=True)
    assert_same(content["model"], state)  # what was validated is what is saved
    assert content["epoch"] == 1 and len(content["workers"]) == 2
    assert content["run"]["samples_seen"] == result["samples"] == SAMPLES // 16 * 16
    assert content["run"]["plan"]["workers"] == 2
    torch.optim.SGD(torch.nn.ModuleList([torch.nn.Linear(12, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 3)])
                    .parameters(), 1).load_state_dict(content["optimizer"])  # fmt: skip


def test_another_number_of_workers_goes_on_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        go(tmp_path, epochs=2, emulate_workers=2, signal_at=4)
    capsys.readouterr()
    result, _ = go(tmp_path, epochs=2, emulate_workers=3, resume="auto")
    assert "per-worker state is reset" in capsys.readouterr().out
    steps = [line for line in lines(tmp_path) if "val_loss" not in line]
    first = 5 + (SAMPLES - 5 * 16) // 24
    assert [line["samples"] for line in steps[:6]] == [16, 32, 48, 64, 80, 104]
    assert sum(line["epoch"] == 0 for line in steps) == first
    assert result["steps"] == first + SAMPLES // 24


def test_somebody_elses_checkpoint_is_enough_to_go_on(tmp_path: Path) -> None:
    """The study's files have only these fields."""
    result, _ = go(tmp_path / "a", epochs=1)
    content = torch.load(result["checkpoint"], weights_only=True)
    torch.save({name: content[name] for name in ("epoch", "model", "optimizer")}, tmp_path / "theirs.pt")
    again, _ = go(tmp_path / "b", epochs=2, resume=str(tmp_path / "theirs.pt"))
    assert [line["epoch"] for line in lines(tmp_path / "b")] == [1] * (SAMPLES // 8 + 1)
    assert again["steps"] == 2 * result["steps"]


def test_two_runs_are_not_mixed_in_one_folder(tmp_path: Path) -> None:
    go(tmp_path / "a", epochs=1)
    with pytest.raises(UsageError, match=r"there is a run in .* already, up to epoch-0001\.pt.*--resume auto"):
        go(tmp_path / "a", epochs=1)
    go(tmp_path / "b", epochs=2)
    with pytest.raises(UsageError, match="would mix with"):
        go(tmp_path / "b", epochs=3, resume=str(tmp_path / "a"))
    go(tmp_path / "b", epochs=1, overwrite=True)
    assert sorted(path.name for path in (tmp_path / "b").glob("*.pt")) == ["epoch-0001.pt"]


def test_checkpoints_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    go(tmp_path, epochs=1)
    with pytest.raises(UsageError, match="there is no such file"):
        go(tmp_path, resume=str(tmp_path / "nothing.pt"))
    (tmp_path / "junk.pt").write_bytes(b"junk")
    with pytest.raises(DamagedCheckpoint, match="not a checkpoint"):
        go(tmp_path / "new", resume=str(tmp_path / "junk.pt"))
    content = torch.load(tmp_path / "epoch-0001.pt", weights_only=True)
    del content["model"]["bn.running_mean"]
    torch.save(content, tmp_path / "other.pt")
    with pytest.raises(UsageError, match=r"does not fit this run: .*bn\.running_mean.* another network"):
        go(tmp_path / "new", resume=str(tmp_path / "other.pt"))
    assert not (tmp_path / "new" / "metrics.jsonl").exists()


def test_the_last_ones_and_the_best_stay(tmp_path: Path) -> None:
    go(tmp_path, epochs=6, keep=2, lr=0.5)
    kept = CheckpointStore(tmp_path).all()
    best = max((line["val_accuracy"], line["epoch"]) for line in lines(tmp_path) if "val_accuracy" in line)
    assert {checkpoint.facts["epoch"] for checkpoint in kept} == {5, 6, best[1] + 1}


def test_checkpoints_within_an_epoch(tmp_path: Path) -> None:
    go(tmp_path, epochs=1, keep=0, save_every=0.25)  # of 25 steps
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == [
        "epoch-0001.pt", "step-00000007.pt", "step-00000013.pt", "step-00000019.pt",
    ]  # fmt: skip
    go(tmp_path / "few", epochs=4, keep=0, save_every=3)
    assert sorted(path.name for path in (tmp_path / "few").glob("*.pt")) == ["epoch-0003.pt", "epoch-0004.pt"]


def test_a_loss_that_is_not_a_number_ends_the_run_before_it_does_harm(tmp_path: Path) -> None:
    with env.during(HORA_NONFINITE="stop"), pytest.raises(NonFiniteError, match=r"step 4: loss is nan on rank 0"):
        go(tmp_path, fail_at=3)
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3]
    assert list(tmp_path.glob("*.pt")) == []


def test_every_step_is_in_the_record(tmp_path: Path) -> None:
    result, _ = go(tmp_path, epochs=2, warmup="iteration:1", base_batch=4)
    *steps, epoch = [line for line in lines(tmp_path) if line["epoch"] == 0]
    assert [line["step"] for line in steps] == list(range(1, 26))
    assert [line["lr"] for line in steps] == pytest.approx([0.05 + 0.05 * step / 25 for step in range(25)])
    assert epoch["loss"] == pytest.approx(sum(line["loss"] for line in steps) / 25)
    assert epoch["val_loss"] and result["global_batch"] == 8 and result["peak_lr"] == 0.1
    assert set(result) >= {
        "workload", "workers", "emulated_workers", "epochs", "samples", "val_loss", "val_accuracy", "images_per_s",
        "first_batch_s", "seconds", "seed", "generated_data", "batch", "global_batch", "peak_lr", "checkpoint",
    }  # fmt: skip


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    go(tmp_path, epochs=1, tensorboard=True, log_every=5)
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator").EventAccumulator
    events = accumulator(str(tmp_path))
    events.Reload()
    drawn = [(event.step, event.value) for event in events.Scalars("train/loss")]
    told = {line["step"]: line["loss"] for line in lines(tmp_path) if "val_loss" not in line}
    assert drawn == [(step, pytest.approx(told[step])) for step in (5, 10, 15, 20, 25)]
    assert [event.step for event in events.Scalars("epoch/val_loss")] == [25]


def test_killed_at_any_moment_it_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    """kill -9, again and again, while it writes checkpoints at almost every step."""
    given = {"epochs": 6, "save_every": 0.05, "keep": 2}
    _, expected = go(tmp_path / "whole", **given)
    out = tmp_path / "killed"
    command = [
        sys.executable, "-m", "tests.workloads.tiny",
        json.dumps({"out": str(out), "resume": "auto", **given}), str(tmp_path / "end.pt"),
    ]  # fmt: skip
    environment = clean_environment(OMP_NUM_THREADS="1", PYTHONPATH=f"{ROOT / 'src'}:{ROOT}")
    for until in (3, 14):
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
        try:
            wait_until(partial(_is_past, out, until, process), 60)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(30)
        latest = CheckpointStore(out).latest()
        assert latest and latest.facts["step"] >= until
    _, state = go(out, resume="auto", **given)
    assert_same(state, expected)
    assert lines(out, "loss", "accuracy") == lines(tmp_path / "whole", "loss", "accuracy")
    assert [path.name for path in out.iterdir() if path.suffix == ".part"] == []


def _is_past(out: Path, step: int, process: subprocess.Popen[bytes]) -> bool:
    """Whether there is a checkpoint of that step or a later one, by its name; or nobody who would write it."""
    names = os.listdir(out) if out.exists() else []
    steps = [int(name[5:13]) for name in names if name.endswith(".pt") and name.startswith("step-")]
    return max(steps, default=0) >= step or process.poll() is not None
