"""Records in which numbers are nan or infinite, which are null in JSON: still listed, shown, compared and reported."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.lab.records import made_up
from tests.lab.report import samples

from hora.lab.records import compare, scan, show, summary
from hora.lab.records.files import Experiment, RunFolder, open_any
from hora.lab.report import answer, write
from hora.lab.report.gather import gather
from hora.lab.sweep.measure import metric_of
from hora.lab.trial import Trial, TrialOutcome
from hora.workloads.run_record import RunRecord, read_lines


def without(value: Any, name: str, inside: bool = False) -> Any:
    """The document with null in the place of every float, or of every float in the field of that name."""
    if isinstance(value, dict):
        return {key: without(each, name, inside or key == name) for key, each in value.items()}
    if isinstance(value, list):
        return [without(each, name, inside) for each in value]
    return None if isinstance(value, float) and (inside or not name) else value


def spoil(folder: Path, name: str) -> None:
    for path in sorted(folder.rglob("*.json*")):
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        path.write_text("".join(json.dumps(without(json.loads(line), name)) + "\n" for line in lines))


@pytest.mark.parametrize("name", ["", "loss", "val_accuracy", "images_per_s", "efficiency", "step_s", "epochs"])
def test_whatever_is_not_a_number_everything_else_is_shown(tmp_path: Path, name: str) -> None:
    samples.scaling(tmp_path / "scaling", timeline=False)
    samples.sweep(tmp_path / "sweep")
    samples.run(tmp_path / "run")
    made_up.write_run(tmp_path / "alone")
    samples.bench(tmp_path / "bench.json")
    spoil(tmp_path, name)
    out = Console(file=io.StringIO(), width=150)
    lines, problems = summary.lines_of(scan(tmp_path))
    show.print_list(out, lines, tmp_path)
    assert len(lines) == 4 and not problems
    found = {folder: open_any(tmp_path / folder) for folder in ("scaling", "sweep", "run", "alone")}
    for trial in sorted((tmp_path / "scaling" / "trials").iterdir()):
        found[f"scaling/trials/{trial.name}"] = open_any(trial)
    for folder, record in found.items():
        if isinstance(record, Experiment):
            show.print_experiment(out, record, tmp_path / folder)
        else:
            show.print_run(out, record)
    runs = [(tmp_path / folder, record) for folder, record in found.items() if isinstance(record, RunFolder)]
    show.print_comparison(out, compare.compare(runs))
    gathered = gather([tmp_path, tmp_path / "bench.json"])
    assert write.sections(gathered) and answer.answer(gathered).words and not gathered.problems
    assert len(gathered.benches) == 1


def test_a_run_whose_loss_is_no_number_has_all_its_lines(tmp_path: Path) -> None:
    with RunRecord(tmp_path) as record:
        for step, loss in enumerate((2.0, math.inf, math.nan, -math.inf), start=1):
            record.step({"step": step, "loss": loss})
        record.epoch({"step": 4, "epoch": 0, "epoch_s": 1.0, "loss": math.nan})
    steps, epochs = read_lines(tmp_path)
    assert [line["loss"] for line in steps] == [2.0, None, None, None] and epochs[0]["loss"] is None
    with RunRecord(tmp_path, after_step=2) as record:  # it goes on from a checkpoint
        record.step({"step": 3, "loss": 1.0})
    assert [line["step"] for line in read_lines(tmp_path)[0]] == [1, 2, 3]


def test_a_point_of_a_sweep_that_came_to_no_number_does_not_end_the_sweep() -> None:
    trial = Trial(name="a", workload="mnist")
    run = TrialOutcome(trial=trial, state="done", folder="", epochs=[{"val_loss": None}], result={"val_loss": None})
    assert metric_of(run, "val_loss", highest=False) is None


def test_the_list_has_the_largest_jobs_efficiency_and_no_prediction(tmp_path: Path) -> None:
    def line(name: str, kind: str, rows: list[dict[str, Any]]) -> summary.RecordSummary:
        made_up.write_experiment(tmp_path / name, kind=kind, rows=rows)
        return next(line for line in summary.lines_of(scan(tmp_path))[0] if line.folder.endswith(name))

    rows = [
        {"workers": n, "efficiency": e, "images_per_s": 9.0, "state": "done"} for n, e in ((1, 1.0), (4, 0.7), (2, 0.8))
    ]
    assert line("falls", "scaling", rows).result == "efficiency 70 % on 4"
    flagged = [rows[0], {"workers": 2, "efficiency": 1.04, "efficiency_low": 1.01, "state": "done"}]
    assert line("above", "scaling", flagged).result == "above ideal (104 %) on 2: not comparable"
    study = [
        {"workers": n, "images_per_s": 100.0 * n, "state": "done" if n < 4 else "predicted"} for n in (1, 2, 16, 32)
    ]
    found = line("study", "study", study)
    assert (found.result, found.workers) == ("200 images/s", "1-2")
