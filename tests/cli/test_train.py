"""`hora train` as a user meets it: flags made from options, two workers, a signal, going on, wrong values."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from tests.launch.jobs import on_terminal, run_hora, start_hora
from tests.screen import screen
from tests.workloads.conftest import write_digits

from hora.cli.train import train
from hora.workloads import WORKLOADS, options_of
from hora.workloads.run_checkpoints import RunCheckpoints

TIMEOUT_S = 100.0


def shown(*arguments: str) -> str:
    done = CliRunner().invoke(train, [*arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_every_workload_is_listed_with_its_flags() -> None:
    listed = shown("--help")
    assert all(name in listed for name in WORKLOADS)
    text = " ".join(shown("mnist", "--help").split())
    for flag in ("-np", "--epochs", "--emulate-workers", "--resume", "--network [tensorflow|horovod]", "--save-every"):
        assert flag in text
    assert "Batch size per worker. [default: 100]" in text


def test_what_a_workload_has_no_use_for_is_not_shown() -> None:
    text = " ".join(shown("synthetic", "--help").split())
    assert "--max-steps" in text and "Metrics are written to --out DIR" in text and "Checkpoints and" not in text
    for flag in ("--data ", "--validate", "--val-batch", "--save-every", "--keep", "--loaders", "--tensorboard",
                 "--log-every", "--last", "--epochs"):  # fmt: skip
        assert flag not in text
    assert "--loaders" not in shown("mnist", "--help") and "--loaders" in shown("imagenet", "--help")


def test_a_gpu_that_is_not_there_is_said_and_nothing_is_begun(tmp_path: Path) -> None:
    """A job that got GPUs does not train on the processors in silence."""
    write_digits(tmp_path / "data", 64, 16)
    done = run_hora("train", "mnist", "--data", "data", "--out", "out", cwd=tmp_path, CUDA_VISIBLE_DEVICES="98,99")
    assert done.returncode == 3 and "Traceback" not in done.stderr
    assert "CUDA_VISIBLE_DEVICES=98,99 gives this worker 2 GPUs, and PyTorch" in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1 and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mnist", "--batch", "0"], "--batch 0: Expected `int` >= 1"),
        (["synthetic", "--epochs", "2"], "--epochs: synthetic has no use for it. Leave it out"),
        (["synthetic", "--no-save"], "--save: synthetic has no use for it"),
        (["mnist", "--loaders", "2"], "--loaders: mnist has no use for it"),
        (["mnist", "--batch", "many"], "'many' is not a valid integer"),
        (["mnist", "--epochs", "-1"], "--epochs -1"),
        (["mnist", "--warmup", "steep:5"], "steep"),
        (["mnist", "--network", "other"], "'other' is not one of"),
        (["mnist", "-np", "0"], "-np '0' is not a number of workers"),
        (["mnist", "--data", "nowhere", "-np", "2"], "Run 'hora data get mnist --to nowhere', or 'hora data make"),
        (["mnist", "-np", "2", "--emulate-workers", "3"], "--emulate-workers 3 cannot be divided among 2 processes"),
        (["cifar10", "--depth", "50"], "--depth 50: a ResNet v2 has 9n+2 layers"),
        (["cifar100"], "No such command 'cifar100'"),
        (["mnist", "--no-such-flag"], "No such option"),
    ],
)
def test_wrong_values_are_refused_before_anything_starts(arguments: list[str], said: str) -> None:
    done = run_hora("train", *arguments)
    assert done.returncode == 2
    assert said in done.stderr and "Traceback" not in done.stderr and not done.stdout


def test_options_go_to_workers_as_they_were_given() -> None:
    kind: Any = options_of("mnist")
    made = kind.of({"network": "horovod", "epochs": 2})
    assert (made.batch, made.optimizer, made.lr, made.momentum, made.epochs) == (64, "sgd", 0.01, 0.5, 2.0)


def test_data_that_is_not_there_is_one_message(tmp_path: Path) -> None:
    done = run_hora("train", "mnist", "-np", "2", "--data", tmp_path / "none", "--out", tmp_path, timeout_s=TIMEOUT_S)
    assert done.returncode == 2
    assert done.stderr.count("there is no folder") == 1 and done.stderr.startswith("hora: ")
    assert list(tmp_path.iterdir()) == []


def test_made_digits_are_what_mnist_trains_on(tmp_path: Path) -> None:
    """The commands that `hora` greets with fit together."""
    made = run_hora("data", "make", "digits", "--samples", "60", "--jobs", "1", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    done = run_hora("train", "mnist", "--batch", "30", "--max-steps", "1", cwd=tmp_path, timeout_s=TIMEOUT_S)
    assert done.returncode == 0 and "the data is generated" in done.stdout, done.stderr
    assert "1 of 2 steps of epoch 1/40 done in " in done.stdout and "\nepoch 1/40 done" not in done.stdout
    following = done.stdout.splitlines()[-1].removeprefix("Next: hora ")
    assert run_hora(*following.split(), cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("columns", [80, 200])
def test_two_workers_on_a_terminal(tmp_path: Path, columns: int) -> None:
    """The first state has an infinite ETA; nothing of it, and of what comes after, may be lost."""
    data = write_digits(tmp_path / "data", train=80, test=20)
    shown = on_terminal(
        "train", "mnist", "-np", "2", "--data", data, "--out", tmp_path / "run", "--batch", "10", "--epochs", "2",
        "--timeline-filename", tmp_path / "t.json", columns=columns, timeout_s=TIMEOUT_S,
    )  # fmt: skip
    assert shown.exit_code == 0, shown.text
    assert "mnist: 2 workers, 20 samples a step, 4 steps an epoch" in shown.text
    assert "epoch 1/2 done" in shown.text and "epoch 2/2 done" in shown.text
    assert "ETA ?" in shown.text, "the bar is drawn from the first step on"
    told = "".join(screen(shown.text, columns=1000).split())  # lines break where the terminal ends
    assert re.search(r"Done:8stepsin0:\d\d,[\d.,]+images/s,val_loss[\d.]+,val_accuracy[\d.]+%\.", told), told
    assert f"Checkpoint:{tmp_path}/run/epoch-0002.pt,record:{tmp_path}/run/run.json." in told
    assert told.endswith(f"Next:horalabreport{tmp_path}/run")
    assert "Traceback" not in shown.text and "\x1ehora" not in shown.text
    assert (tmp_path / "t.json").exists() and (tmp_path / "t.rank1.json").exists()


def test_two_workers_are_asked_to_leave_and_go_on_to_the_same_bits(tmp_path: Path) -> None:
    data = write_digits(tmp_path / "data", train=240, test=61)

    def arguments(out: str) -> list[str]:
        return [
            "train", "mnist", "-np", "2", "--network", "tensorflow", "--data", str(data), "--out", str(tmp_path / out),
            "--json", str(tmp_path / f"{out}.json"), "--batch", "10", "--lr", "1e-3", "--epochs", "2",
            "--log-every", "1",
        ]  # fmt: skip

    whole = run_hora(*arguments("whole"), timeout_s=TIMEOUT_S)
    assert whole.returncode == 0, whole.stdout + whole.stderr
    result = json.loads((tmp_path / "whole.json").read_text())
    assert result["workers"] == 2 and result["global_batch"] == 20 and result["peak_lr"] == pytest.approx(2e-4)
    assert result["steps"] == 24 and result["samples"] == 480 and result["val_accuracy"] > 0.5
    assert result["images_per_s"] > 0 and result["first_batch_s"] > 0 and result["generated_data"] is False
    assert "epoch 2/2  step 12/12" in whole.stdout and "images/s" in whole.stdout and "ETA" in whole.stdout
    assert "[0]<stdout>" not in whole.stdout  # one rank speaks

    process = start_hora(*arguments("parts"))
    try:
        assert process.stdout is not None
        said = ""
        while "step 5/12" not in said:
            line = process.stdout.readline()
            assert line, said
            said += line
        process.send_signal(signal.SIGTERM)
        said += process.communicate(timeout=TIMEOUT_S)[0]
    finally:
        process.kill()
    assert process.returncode == 75, said
    assert "stopping as requested: saved" in said and "continue with --resume auto" in said
    assert not (tmp_path / "parts.json").exists()

    again = run_hora(*arguments("parts"), "--resume", "auto", timeout_s=TIMEOUT_S)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "resuming from" in again.stdout
    found, expected = (
        torch.load(json.loads((tmp_path / f"{out}.json").read_text())["checkpoint"], weights_only=True)
        for out in ("parts", "whole")
    )
    for name, tensor in expected["model"].items():
        assert torch.equal(found["model"][name], tensor), name
    steps = [json.loads(line)["step"] for line in (tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()]
    assert steps == [*range(1, 13), 12, *range(13, 25), 24]  # each once, and the epochs' own lines


def test_a_run_that_is_there_is_refused_before_workers_are_started(tmp_path: Path) -> None:
    write_digits(tmp_path / "data" / "mnist", train=40, test=20)
    keeper = RunCheckpoints(tmp_path / "runs" / "mnist")
    keeper.save("epoch-0001.pt", lambda file: file.write(b"weights"), position=1, facts={})
    done = run_hora("train", "mnist", "-np", "2", "--verbose", cwd=tmp_path, timeout_s=TIMEOUT_S)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith("hora: there is a run in runs/mnist already, up to epoch-0001.pt."), done.stderr
    assert done.stderr.count("\n") == 1  # --verbose says it if a worker is started, or ends


@pytest.mark.parametrize("workers", ["1", "2"])
def test_ctrl_c_says_where_the_run_stopped_and_how_to_continue(tmp_path: Path, workers: str) -> None:
    """And nothing of where it met each worker, unless that is asked for."""
    write_digits(tmp_path / "data" / "mnist", train=240, test=20)
    arguments = ("train", "mnist", "-np", workers, "--batch", "10", "--epochs", "4000")
    shown = on_terminal(*arguments, interrupt_at="epoch 3/4000  step", cwd=tmp_path, timeout_s=TIMEOUT_S, columns=300)
    assert shown.exit_code == 130 and "Traceback" not in shown.text and "KeyboardInterrupt" not in shown.text, (
        shown.text
    )
    *_, stopped, last = screen(shown.text, columns=300).strip().splitlines()
    assert stopped == "hora: stopped by SIGINT; all workers have ended"
    found = re.fullmatch(
        r"hora: stopped at epoch (\d+)/4000, step (\d+); the last checkpoint is (\S+); continue with: hora (.*)", last
    )
    assert found, last
    epoch, step = int(found[1]), int(found[2])
    assert epoch >= 3 and step // (24 // int(workers)) in (epoch - 1, epoch)
    assert (tmp_path / found[3]).exists() and found[4].split() == [*arguments, "--resume", "auto"]


def test_ctrl_c_before_the_first_step(tmp_path: Path) -> None:
    write_digits(tmp_path / "data" / "mnist", train=240, test=20)
    arguments = ("train", "mnist", "-np", "2", "--batch", "10")
    shown = on_terminal(*arguments, "--verbose", interrupt_at="hora: ", cwd=tmp_path, timeout_s=TIMEOUT_S)
    assert shown.exit_code == 130 and "Traceback" not in shown.text, shown.text
    assert shown.text.splitlines()[-1] == "hora: stopped before the first step"
