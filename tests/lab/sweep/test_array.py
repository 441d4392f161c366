"""A sweep as the tasks of a job array: each trains its point wherever it is put, and the table takes them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.launch.jobs import run_hora
from tests.workloads.conftest import write_digits

TIMEOUT_S = 300.0  # on a machine that others use


@pytest.mark.timeout(400)
def test_the_table_is_made_of_what_the_tasks_trained_on_other_hosts(tmp_path: Path) -> None:
    data = write_digits(tmp_path / "data", train=32, test=20)
    out = tmp_path / "out"
    sweep = ["lab", "sweep", "mnist", "--grid", "batch=8,16", "--epochs", "1", "--threads", "1", "--set",
             f"data={data}", "--set", "network=horovod", "--runs", tmp_path]  # fmt: skip
    said = []
    for task in ("0", "1"):
        done = run_hora(*sweep, "-H", "localhost:1", "--out", out, "--task", task, timeout_s=TIMEOUT_S)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout + done.stderr)
    assert not (out / "experiment.json").exists()
    made = {path: path.stat().st_mtime_ns for path in out.glob("trials/*/outcome.json")}
    assert len(made) == 2
    table = run_hora(*sweep, "-H", "127.0.0.1:2", "--resume", out, timeout_s=TIMEOUT_S)
    assert table.returncode == 0, table.stderr
    assert table.stderr.count("(from before)") == 2
    assert made == {path: path.stat().st_mtime_ns for path in made}
    rows = json.loads((out / "experiment.json").read_text())["rows"]
    for row, text in zip(rows, said, strict=True):  # a task tells what the table has of it
        assert f"val_accuracy {100 * row['val_accuracy']:.2f} %" in text
        assert float(re.findall(r" in ([\d.]+) s;", text)[0]) == pytest.approx(row["time_s"], abs=0.51)


def test_a_folder_without_any_trial_is_still_refused(tmp_path: Path) -> None:
    (tmp_path / "trials").mkdir()
    done = run_hora("lab", "sweep", "synthetic", "--grid", "batch=4", "--resume", tmp_path)
    assert done.returncode == 2 and "there is no experiment in it" in done.stderr
