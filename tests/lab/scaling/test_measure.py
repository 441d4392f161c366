"""Which trials there are, and what rows, waterfall and findings come of them, with trials that are made up."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hora.lab import records
from hora.lab.scaling import measure
from hora.lab.scaling.series import series
from hora.lab.scaling.show import print_findings
from hora.lab.throughput.cores import FullestHost
from hora.lab.throughput.grid import GridSetup
from hora.lab.trial import Trial, TrialOutcome, turns

STEPS = {"limit": (0.11, 0.12), "in step": (0.13, 0.13), "together": (0.15, 0.15)}


def made_up(trial: Trial, folder: Path, **_: Any) -> TrialOutcome:
    """One worker takes 100 ms a step; two take STEPS. A validation takes 1 s and a checkpoint 0.5 in 100 steps."""
    result: dict[str, Any] = {"global_batch": 32 * trial.workers, "steps_per_epoch": 100, "validation_s": 1.0,
                              "save_s": 0.5}  # fmt: skip
    outcome = TrialOutcome(trial=trial, state="done", folder=str(folder), result=result, step_s=[0.1] * 8, data_s=0.0,
                      images_per_s=320.0, seconds=1.0)  # fmt: skip
    if trial.by_turns:
        result["by_turns"] = {mode: [[seconds] * 8 for seconds in ranks] for mode, ranks in STEPS.items()}
        result["by_turns"] |= {"data": {mode: [0.0, 0.0] for mode in STEPS}, "meeting": 0.0}
        turns.take(outcome, "together")
    return outcome


def measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workload: str = "mnist", pauses: bool = False, **options: Any
) -> tuple[records.ExperimentWriter, list[Trial]]:
    tried: list[Trial] = []

    def run(trial: Trial, folder: Path, **more: Any) -> TrialOutcome:
        tried.append(trial)
        return made_up(trial, folder, **more)

    monkeypatch.setattr("hora.lab.trial.run", run)
    job = GridSetup(workload=workload, steps=30, repeats=2, options=options)
    wanted = [series("weak", [1, 2], 32, 1, cores=2)]
    with records.experiment("scaling", "t", {}, tmp_path / "x", tmp_path / "runs", []) as book:
        measure.measure(job, wanted, book, lambda line: None, FullestHost(2, 2), pauses=pauses)
    return book, tried


def test_rows_have_all_three_references_and_the_waterfall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From 100 ms alone: 10 in contention (of the faster), 20 waiting, 20 moving, and 15 of pauses: 165."""
    book, _ = measured(tmp_path, monkeypatch, pauses=True)
    one, two = book.rows
    assert one["waterfall"] is None and not one["above_ideal"]
    assert two["efficiency"] == pytest.approx(100 / 150, rel=1e-4) and two["in_step_efficiency"] == pytest.approx(
        10 / 13
    )
    assert two["limit_images_per_s"] == pytest.approx(32 / 0.11 + 32 / 0.12, rel=1e-4)
    assert {part["part"]: part["ms"] for part in two["waterfall"]} == {
        "computing": 100, "contention": 10, "waiting": 20, "moving": 20, "data": 0, "pauses": 15
    }  # fmt: skip
    assert sum(part["share"] for part in two["waterfall"]) == pytest.approx(1.0, abs=1e-5)
    assert not two["above_ideal"] and not two["slower_than_one"] and two["link"] is None


@pytest.mark.parametrize(("others", "titled"), [(0.1, False), (0.6, True)])
def test_other_processes_that_the_verdict_names_are_in_the_waterfall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: float, titled: bool
) -> None:
    monkeypatch.setattr("hora.lab.throughput.measure.TrialRunner.others", lambda self: others)
    book, _ = measured(tmp_path, monkeypatch)
    titles = [part["title"] for part in book.rows[1]["waterfall"]]
    assert ("contention: other workers and processes" in titles) is titled
    assert any(found["title"] == "other processes use this machine" for found in book.findings) is titled


@pytest.mark.parametrize(
    ("change", "takes"),
    [
        ("End them, and measure again: up to 33 % less time a step", "It takes 33 % of a step."),
        ("Look at the link", "It takes 33 % of a step; gain: up to 33 % less time a step."),
    ],
)
def test_the_gain_is_said_once(change: str, takes: str) -> None:
    out = Console(file=io.StringIO(), width=100)
    print_findings(out, [{"kind": "machine", "title": "t", "what": "w", "change": change, "share": 0.33, "gain": 0.33}])
    said = " ".join(out.file.getvalue().split())  # type: ignore[attr-defined]
    assert said == f"Bottleneck: t. w. Change: {change}. {takes}"


def test_findings_agree_with_the_waterfall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book, _ = measured(tmp_path, monkeypatch)
    shares = {part["part"]: part["share"] for part in book.rows[1]["waterfall"]}
    assert shares["pauses"] is None, "which was not measured"
    found = {finding["kind"]: finding["share"] for finding in book.findings}
    assert found["bandwidth"] == pytest.approx(shares["moving"], abs=1e-5)
    assert found["imbalance"] == pytest.approx(shares["waiting"], abs=1e-5)


def test_several_workers_take_turns_in_one_run_and_nothing_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, tried = measured(tmp_path, monkeypatch, pauses=True, save_every=0.25)
    kinds = [(trial.workers, trial.by_turns, trial.timeline, trial.options.get("save", True)) for trial in tried]
    turn = [(1, False, False, False), (2, True, False, False)]
    assert kinds == [*turn, *turn, (2, False, True, False), (2, False, False, True)]
    assert tried[-1].options["save_every"] == 0.25, "that is what is measured there"


def test_keras_takes_turns_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book, tried = measured(tmp_path, monkeypatch, framework="keras")
    assert [trial.by_turns for trial in tried if trial.workers == 2 and not trial.timeline] == [True, True]
    assert not any(trial.independent for trial in tried)
    names = [part["part"] for part in book.rows[1]["waterfall"]]
    assert "waiting" in names and "communication" not in names


def test_more_than_ideal_is_flagged_and_cautioned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faster = dict.fromkeys(STEPS, (0.07, 0.07))
    monkeypatch.setattr("tests.lab.scaling.test_measure.STEPS", faster)
    book, _ = measured(tmp_path, monkeypatch)
    assert book.rows[1]["above_ideal"] and book.findings[0]["kind"] == "above ideal"
    assert any("143 %" in note and "do not trust it" in note for note in book.notes)


def test_the_first_advice_is_tried_and_its_gain_is_the_measured_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moving takes 60 of 160 ms. With the advice a run takes 160 ms too, and then one takes 100."""
    slow = {"limit": (0.1, 0.1), "in step": (0.1, 0.1), "together": (0.16, 0.16)}
    monkeypatch.setattr("tests.lab.scaling.test_measure.STEPS", slow)
    book, tried = measured(tmp_path, monkeypatch, workload="synthetic")
    first = book.findings[0]
    assert first["follow"] == "--batch 64" and tried[-1].name == "2w-b64-t1-advice-1" and tried[-1].by_turns
    assert first["tried"] and first["gain"] == pytest.approx(0.0), "as the made-up run is no faster with it"
    assert "--batch 64 gains nothing here" in first["change"]

    as_before = made_up

    def faster(trial: Trial, folder: Path, **more: Any) -> TrialOutcome:
        outcome = as_before(trial, folder, **more)
        if "-advice-" in trial.name:
            outcome.result["by_turns"]["together"] = [[0.1] * 8, [0.1] * 8]
        return outcome

    monkeypatch.setattr("tests.lab.scaling.test_measure.made_up", faster)
    book, _ = measured(tmp_path / "again", monkeypatch, workload="synthetic")
    assert book.findings[0]["gain"] == pytest.approx(1 - 0.1 / 0.16, abs=1e-6)
    assert book.findings[0]["share"] == pytest.approx(0.06 / 0.16, abs=1e-5), "the share is of the waterfall"


def test_a_caution_says_whose_figures_it_is_about() -> None:
    row = {"workers": 2, "mode": "weak", "efficiency": 1.2, "above_ideal": True, "efficiency_low": 0.5,
           "efficiency_high": 1.5}  # fmt: skip
    said = measure._unsure([{**row, "strategy": "hora"}, {**row, "strategy": "ddp"}])
    assert [text.count("2 workers (weak)") for text in said] == [1, 0, 1, 0]
    assert [text.count("2 workers (DDP, weak)") for text in said] == [0, 1, 0, 1]
