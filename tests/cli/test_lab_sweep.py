"""`hora lab sweep` with real runs: what does not fit, what diverges, what was killed; wrong values."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.launch.jobs import run_hora, start_hora, wait_until
from tests.workloads.conftest import write_digits

from hora.cli.lab import lab
from hora.errors import UsageError

TIMEOUT_S = 300.0  # on a machine that others use
SHORT = ["--set", "model=mnist_horovod", "--set", "warmup-batches=1", "--set", "batches-per-iter=1", "--set", "iters=2",
         "--threads", "1"]  # fmt: skip


def rows_of(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((folder / "experiment.json").read_text())["rows"]
    return rows


@pytest.mark.long
@pytest.mark.timeout(400)
def test_what_does_not_fit_is_a_limit_and_not_the_end(tmp_path: Path) -> None:
    """Two thousand million images take 6 TB."""
    grid = "batch=2000000000,4 lr=0.01 weight_decay=0,1e-4"
    out = tmp_path / "out"
    done = run_hora("lab", "sweep", "synthetic", "--grid", grid, *SHORT, "--set", "seed=3", "--out", out,
                    "--runs", tmp_path, timeout_s=TIMEOUT_S)  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = rows_of(out)
    assert [(row["batch"], row["weight_decay"], row["state"]) for row in rows] == [
        (4, 0.0, "done"), (4, 0.0001, "done"), (2000000000, 0.0, "out of memory"), (2000000000, 0.0001, "skipped"),
    ]  # fmt: skip
    assert "did not fit" in rows[3]["error"] and not (out / "trials" / rows[3]["trial"]).exists()
    assert [row["best"] for row in rows].count(True) == 1 and max(rows, key=lambda r: r["images_per_s"] or 0)["best"]
    assert "a batch of 2000000000 does not fit into memory" in " ".join(done.stdout.split())


@pytest.mark.timeout(400)
def test_divergence_is_a_row_and_killed_sweeps_go_on(tmp_path: Path) -> None:
    data = write_digits(tmp_path / "data", train=32, test=20)
    out = tmp_path / "out"
    command = ["lab", "sweep", "mnist", "--tpe", "3", "--range", "lr=1e-4..1e-3 log", "--epochs", "1", "--threads", "1",
               "--set", f"data={data}", "--set", "batch=16", "--set", "network=horovod", "--out", out,
               "--runs", tmp_path]  # fmt: skip
    with start_hora(*command) as first:
        try:
            wait_until(lambda: (out / "trials" / "0001" / "outcome.json").exists(), TIMEOUT_S, "the first trial")
        finally:
            os.kill(first.pid, signal.SIGKILL)
    kept = (out / "trials" / "0001" / "outcome.json").stat().st_mtime_ns
    done = run_hora(*command, timeout_s=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    rows = rows_of(out)
    assert [row["trial"] for row in rows] == ["0001", "0002", "0003"]
    assert len({row["lr"] for row in rows}) == 3 and all(1e-4 <= row["lr"] <= 1e-3 for row in rows)
    assert (out / "trials" / "0001" / "outcome.json").stat().st_mtime_ns == kept
    best = max(rows, key=lambda row: row["val_accuracy"])
    assert best["best"] and all(row["state"] == "done" for row in rows)

    hot = run_hora("lab", "sweep", "mnist", "--grid", "lr=1e30", *command[7:-4], "--out", tmp_path / "hot", "--runs",
                   tmp_path, timeout_s=TIMEOUT_S)  # fmt: skip
    assert hot.returncode == 0, hot.stderr
    [row] = rows_of(tmp_path / "hot")
    assert row["state"] == "diverged" and row["val_accuracy"] is None and not row["best"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mnits", "--grid", "lr=1"], "there is no workload 'mnits'"),
        (["mnist"], "what is to be searched?"),
        (["mnist", "--grid", "lr=1", "--tpe", "3"], "one of them"),
        (["mnist", "--grid", ""], "nothing in it"),
        (["mnist", "--grid", "lr=fast"], "lr=fast"),
        (["mnist", "--grid", "speed=1"], "no option 'speed'"),
        (["cifar10", "--grid", "depth=21"], "9n+2"),
        (["mnist", "--grid", "lr=1", "--range", "lr=1..2"], "--range is for --tpe"),
        (["mnist", "--tpe", "3"], "needs at least one --range"),
        (["mnist", "--tpe", "3", "--range", "lr=2..1"], "low end"),
        (["mnist", "--grid", "lr=1", "--set", "lr=2"], "fixed and searched"),
        (["mnist", "--grid", "lr=1", "--set", "data=/no/such/place"], "there is no /no/such/place"),
    ],
    ids=["workload", "nothing", "both", "empty", "text", "option", "depth", "range", "none", "order", "twice", "data"],
)
def test_wrong_values_are_refused_before_anything_starts(tmp_path: Path, arguments: list[str], said: str) -> None:
    data = [] if any(word.startswith("data=") for word in arguments) else ["--set", f"data={tmp_path}"]
    done = CliRunner().invoke(lab, ["sweep", *arguments, *data, "--runs", str(tmp_path / "runs")])
    assert isinstance(done.exception, UsageError) and said in str(done.exception)
    assert not (tmp_path / "runs").exists()


def test_tpe_without_optuna_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    done = CliRunner().invoke(lab, ["sweep", "synthetic", "--tpe", "2", "--range", "lr=0.1..1"])
    assert "pip install 'hora[lab]'" in str(done.exception)
