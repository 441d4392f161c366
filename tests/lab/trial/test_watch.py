"""How far a run is, from files that it writes while it runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hora.lab.trial.watch import TrialMonitor
from hora.workloads import options_of
from hora.workloads.folder import RunNote


def test_steps_and_what_is_left(tmp_path: Path) -> None:
    watch = TrialMonitor(tmp_path)
    watch.look(1.0)  # nothing is there yet
    assert (watch.step, watch.steps, watch.left_s) == (0, 0, None)
    options = options_of("mnist").of({"out": str(tmp_path), "batch": 10, "epochs": 2})
    RunNote(options, options.plan(1000, 2), workers=2)
    lines = [
        json.dumps({"step": n, "epoch": 0, "samples": 20 * n, "images_per_s": 40.0, "loss": 1.0}) for n in range(1, 61)
    ]
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text("\n".join(lines[:10]) + "\n")
    watch.look(4.0)
    assert (watch.step, watch.steps, watch.images_per_s, watch.left_s) == (10, 100, 40.0, None)
    metrics.write_text("\n".join(lines[:30]) + '\n{"step":31,"ep')  # it is just being written
    watch.look(8.0)
    assert watch.step == 30 and watch.left_s == pytest.approx(70 * 0.2)
    watch.look(9.0)  # nothing new
    assert watch.left_s == pytest.approx(70 * 0.2)
    epoch = json.dumps({"step": 60, "epoch": 0, "epoch_s": 3.0, "val_accuracy": 0.5})
    metrics.write_text("\n".join([*lines, epoch]) + "\n")
    watch.look(14.0)
    assert watch.step == 60 and watch.left_s == pytest.approx(40 * 0.2)


def test_nonsense_is_no_reason_to_end(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{")
    (tmp_path / "metrics.jsonl").write_bytes(b'\xff\xfe\n[]\n{"images_per_s":null,"step":"x"}\n')
    watch = TrialMonitor(tmp_path)
    watch.look(1.0)
    assert watch.step == 0 and watch.left_s is None
