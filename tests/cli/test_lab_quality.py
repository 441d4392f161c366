"""`hora lab quality` on a few digits: a real worker and emulated ones, the rows from their metrics; wrong values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.launch.jobs import run_hora
from tests.workloads.conftest import write_digits

TIMEOUT_S = 300.0  # on a machine that others use


@pytest.mark.timeout(400)
def test_rows_are_those_of_the_runs_and_nothing_runs_twice(tmp_path: Path) -> None:
    data = write_digits(tmp_path / "data", train=96, test=50)
    out, file = tmp_path / "out", tmp_path / "quality.json"
    command = ["lab", "quality", "mnist", "--workers", "4", "--factors", "iteration:1", "--seeds", "7", "--epochs", "2",
               "--minutes", "60", "--processes", "1", "--threads", "1", "--set", f"data={data}",
               "--set", "network=horovod", "--set", "batch=8", "--set", "base-batch=8", "--runs", tmp_path]  # fmt: skip
    done = run_hora(*command, "--out", out, "--json", file, timeout_s=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    written = json.loads(file.read_text())
    assert (written["kind"], written["state"]) == ("quality", "done")
    base, many = written["rows"]
    assert (base["factor"], base["workers"], base["emulated"], base["global_batch"]) == ("baseline", 1, False, 8)
    assert (many["factor"], many["workers"], many["emulated"], many["global_batch"]) == ("iteration:1", 4, True, 32)
    assert many["peak_lr"] == pytest.approx(4 * base["peak_lr"]) and many["warmup"] == "iteration:1"
    for row, name in ((base, "baseline-1w-seed7"), (many, "iteration1-4w-seed7")):
        lines = [json.loads(line) for line in (out / "trials" / name / "metrics.jsonl").read_text().splitlines()]
        epochs = [line for line in lines if "val_accuracy" in line]
        assert len(epochs) == 2
        assert row["best_top1"] == pytest.approx(max(line["val_accuracy"] for line in epochs), rel=1e-4)
        assert row["curve"]["val_error"] == pytest.approx([1 - line["val_accuracy"] for line in epochs])
        assert row["curve"]["train_error"] == pytest.approx([1 - line["accuracy"] for line in epochs])
        assert row["curve"]["samples"] == [line["samples"] for line in epochs] == [96, 192]
        assert not list((out / "trials" / name).glob("*.pt"))  # checkpoints are not kept
    rates = [line["lr"] for line in lines if "lr" in line]  # of four workers: it rises, to four times one's
    assert rates[0] < rates[1] <= max(rates) == pytest.approx(many["peak_lr"])
    assert base["budgets"][0]["top1"] == base["best_top1"] and many["budgets"][0]["how"] == "not known"
    said = " ".join(done.stdout.split())
    assert "emulated" in said and "only one seed" in said

    before = (out / "trials" / "baseline-1w-seed7" / "outcome.json").stat().st_mtime_ns
    again = run_hora(*command, "--resume", out, timeout_s=TIMEOUT_S)
    assert again.returncode == 0, again.stderr
    assert (out / "trials" / "baseline-1w-seed7" / "outcome.json").stat().st_mtime_ns == before
    assert json.loads((out / "experiment.json").read_text())["rows"] == written["rows"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mnits"], "there is no workload 'mnits'"),
        (["synthetic"], "reports no accuracy"),
        (["mnist", "--factors", "naive,magic"], "'magic' is not one"),
        (["mnist", "--workers", "2,x"], "'x' is not a number above 0"),
        (["mnist", "--seeds", ""], "--seeds"),
        (["mnist", "--set", "warmup=gradual:5"], "factor by factor"),
        (["mnist", "--set", "lr=fast"], "lr=fast"),
        (["mnist", "--set", "data=/no/such/place"], "there is no /no/such/place"),
        (["mnist", "--epochs", "0"], "0.0 is not in the range"),
        (["mnist", "--minutes", "soon"], "'soon' is not a time above 0"),
        (["mnist", "--calibration", "study"], "--calibration is for --minutes"),
    ],
    ids=["workload", "synthetic", "factor", "workers", "seeds", "warmup", "lr", "data", "epochs", "minutes", "cal"],
)
def test_wrong_values_are_refused_before_anything_starts(tmp_path: Path, arguments: list[str], said: str) -> None:
    from click.testing import CliRunner

    from hora.cli.lab import lab
    from hora.errors import UsageError

    data = [] if any(word.startswith("data=") for word in arguments) else ["--set", f"data={tmp_path}"]
    done = CliRunner().invoke(lab, ["quality", *arguments, *data, "--runs", str(tmp_path / "runs")])
    text = str(done.exception) if isinstance(done.exception, UsageError) else done.output
    assert done.exit_code != 0 and said in text
    assert not (tmp_path / "runs").exists()


def test_a_refusal_is_one_message_and_exit_code_2() -> None:
    done = run_hora("lab", "quality", "mnist", "--factors", "magic")
    assert done.returncode == 2
    assert "'magic' is not one" in done.stderr and "Traceback" not in done.stderr and not done.stdout
