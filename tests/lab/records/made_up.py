"""Records for tests, without a run: what `hora train` and experiments would have written."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from hora.lab.records.files import Experiment
from hora.lab.trial import Trial, TrialOutcome
from hora.workloads.folder import RunFile, write_json

HOST = {"hostname": socket.gethostname(), "cpu_model": "Z80", "cores": 1, "memory_bytes": 1 << 33, "system": "CP/M 2"}


def write_run(
    folder: Path, *, batch: int = 32, accuracy: float = 0.9, images_per_s: float = 1000.0, **more: Any
) -> Path:
    facts: dict[str, Any] = {
        "workload": "mnist",
        "options": {"batch": batch, "lr": 0.01, "epochs": 2.0, "out": str(folder)},
        "plan": {},
        "workers": 2,
        "threads_per_worker": 1,
        "versions": {"python": "3.11", "torch": "2.13.0"},
        "host": HOST,
        "command": ["hora", "train", "mnist"],
        "started": "2026-03-01T10:00:00.000Z",
        "ended": "2026-03-01T10:01:15.000Z",
        "state": "done",
        "result": {"val_accuracy": accuracy, "best_val_accuracy": accuracy, "images_per_s": images_per_s, "steps": 20},
    }
    write_json(folder / "run.json", RunFile(**(facts | more)))
    lines = [
        {
            "step": 10 * n,
            "epoch": n - 1,
            "samples": 640 * n,
            "epoch_s": 1.5,
            "loss": 1 / n,
            "val_accuracy": accuracy / n,
        }
        for n in (1, 2)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def write_outcome(folder: Path, **more: Any) -> Path:
    trial = Trial(name=folder.name, workload="mnist", workers=2, options={"batch": 32})
    facts: dict[str, Any] = {"trial": trial, "state": "done", "folder": str(folder), "images_per_s": 900.0}
    write_json(folder / "outcome.json", TrialOutcome(**(facts | more)))
    return folder


def write_experiment(folder: Path, images_per_s: float = 100.0, **more: Any) -> Path:
    rows = [
        {"workers": n, "batch": 32, "images_per_s": n * images_per_s, "efficiency": 1.0 - n / 10, "state": "done"}
        for n in (1, 2)
    ]
    facts: dict[str, Any] = {
        "kind": "scaling",
        "title": "mnist, weak",
        "options": {"workload": "mnist", "batch": 32, "workers": [1, 2]},
        "command": ["/opt/bin/hora", "lab", "scaling"],
        "started": "2026-03-02T10:00:00.000Z",
        "ended": "2026-03-02T11:00:00.000Z",
        "state": "done",
        "host": HOST,
        "versions": {"torch": "2.13.0"},
        "trials": ["w1", "w2"],
        "rows": rows,
        "findings": [{"kind": "input", "title": "The loader is slow", "what": "Steps wait", "change": "--loaders 2",
                      "gain": 0.25, "rank": None}],
        "notes": ["the data is generated"],
    }  # fmt: skip
    write_json(folder / "experiment.json", Experiment(**(facts | more)))
    return folder
