"""The miniature's rows stand beside the right rows of the published tables, and its answers say what the rows say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hora.data.generated import is_generated
from hora.data.idx import read_idx
from hora.data.make.digits import make_digits
from hora.errors import BadData
from hora.lab.quality import rows as quality_rows
from hora.lab.quality.trials import FactorCase
from hora.lab.study import measure, scale
from hora.lab.study.answers import answers
from hora.lab.study.data import prepare
from hora.lab.study.published import QUALITY, SPEED, published_quality, speed_up
from hora.lab.study.show import quality_table, speed_table
from hora.lab.trial import TrialOutcome
from hora.predict.published import tables

STUDY = tables()["thesis"]


@pytest.mark.parametrize("quality", QUALITY, ids=lambda quality: quality.factor)
def test_experiments_are_those_of_the_study(quality: Any) -> None:
    said = STUDY["experiments"][str(quality.experiment)]
    assert list(quality.gpus) == said["gpus"]
    for gpus in quality.gpus:
        found = published_quality(quality.experiment, gpus)
        assert found is not None
        lr = said["lr"] if isinstance(said["lr"], float) else said["lr"][str(gpus)]
        assert (found["lr"], found["batch"]) == (lr, said["batch_per_gpu"])


def test_throughput_is_of_the_same_gpus() -> None:
    assert {number: list(gpus) for number, gpus in SPEED.items()} == {
        int(number): STUDY["experiments"][number]["gpus"] for number in ("1", "2", "3")
    }
    assert speed_up("horovod+tensorflow", 32, 32) == pytest.approx(22.687, abs=1e-3)
    assert speed_up("pytorch", 64, 32) is None


def test_rates_keep_the_studys_proportions() -> None:
    """Peak rates of experiments 4 to 9 have the ratios to the baseline's that they have in the study."""
    for quality, factor, workers in scale.quality_runs(scale.FULL):
        plan = scale.recipe(quality.experiment, "d").options(factor, workers).plan(40_000, workers)
        said = published_quality(quality.experiment, workers)
        assert said is not None
        assert plan.peak_lr / scale.LR == pytest.approx(said["lr"] / 0.05), (quality, workers)
        drops = [round(plan.lr_at_epoch(epoch) / plan.peak_lr, 6) for epoch in (2.9, 3, 6, 8)]
        assert drops == ([1, 0.1, 0.01, 0.01] if quality.experiment == 4 else [1, 0.1, 0.01, 0.001])


def test_data_is_a_part_of_the_set_and_says_what_it_is(tmp_path: Path) -> None:
    make_digits(tmp_path / "all", samples=40, test=20)
    said = prepare(tmp_path / "all", tmp_path / "some", 30, 10)
    kept = read_idx(tmp_path / "some" / "train-images-idx3-ubyte", 3)
    assert (kept == read_idx(tmp_path / "all" / "train-images-idx3-ubyte", 3)[:30]).all() and len(kept) == 30
    assert is_generated(tmp_path / "some") and "generated" in said
    assert prepare(tmp_path / "all", tmp_path / "some", 30, 10) == said
    with pytest.raises(BadData, match="40 images to train"):
        prepare(tmp_path / "all", tmp_path / "more", 50, 10)


def rows(tops: dict[tuple[int, int], list[float]]) -> list[dict[str, Any]]:
    """Rows of quality from made-up accuracies by (experiment, workers), and of throughput with two workers."""
    done: dict[tuple[int, FactorCase], list[TrialOutcome]] = {}
    for quality, factor, workers in scale.quality_runs(scale.QUICK):
        cell = FactorCase(factor, workers)
        made = measure._quality_trials(scale.QUICK, 2, "d")[quality.experiment, cell, 1]
        done[quality.experiment, cell] = [
            TrialOutcome(
                trial=made, state="done", folder="", epochs=[{"epoch": 0, "epoch_s": 1.0, "val_accuracy": top}]
            )
            for top in tops.get((quality.experiment, workers), [])
        ]
    fast = {}
    for (framework, batch, workers), made in measure.speed_trials(scale.QUICK, 2, "d").items():
        share = 0.9 if workers > 1 and batch == 32 else 1.0
        outcome = TrialOutcome(trial=made, state="done", folder="", images_per_s=900.0 * workers)
        outcome.images_per_s_study = 450.0 * workers
        outcome.result = {"images_per_s": 1000.0 * workers * share}
        fast[framework, batch, workers] = outcome
    learned = {key: outcomes for key, outcomes in done.items() if outcomes}
    return [*measure._speed_rows(scale.QUICK, 2, fast), *measure._quality_rows(scale.QUICK, 2, "d", learned)]


def test_one_worker_has_no_more_cores_than_each_of_several() -> None:
    assert {made.threads_per_worker for made in measure.speed_trials(scale.FULL, 8, "d").values()} == {1}


def test_answers_say_what_the_rows_say() -> None:
    found = rows({(4, 1): [0.95], (4, 32): [0.80], (5, 1): [0.96], (5, 32): [0.944], (6, 32): [0.955], (9, 32): [0.95]})
    speed, naive, remedies = answers(found)
    assert "2 workers are 2.00 times as fast as one at best, 100 % of ideal" in speed["title"]
    assert "tf_cnn form with batch 32 1.80x" in speed["what"] and "A larger batch scales better" in speed["what"]
    assert "says 50 % less than steady steps" in speed["what"] and "29.4x" in speed["change"]
    assert "costs 16.00 points" in naive["title"] and "69.01 %" in naive["change"]
    assert "recovers 90 % of what naive scaling costs" in remedies["title"]  # 14.4 of 16 points
    assert "stepping, adds 1.10 points and ends with 0.50 points less than one worker" in remedies["title"]
    assert speed_table(found).row_count == 23 and quality_table(found).row_count == 6


def test_more_than_ideal_is_not_believed() -> None:
    found = rows({})
    for row in found:
        if row["workers"] == 2 and row["speed_up"]:
            row["speed_up"] *= 3
    assert "the machine was not quiet" in answers(found)[0]["title"]


def test_what_was_not_run_is_not_answered() -> None:
    found = [row for row in rows({}) if row["state"] != "done"]
    assert [answer["title"][:12] for answer in answers(found)] == ["not answered"] * 3


def test_more_workers_than_cores_are_predicted_and_said_to_be() -> None:
    predicted = [row for row in rows({}) if row["state"] == "predicted"]
    assert {row["workers"] for row in predicted} == {4, 8, 16, 24, 32}
    assert all(row["low"] < row["images_per_s"] < row["high"] for row in predicted)
    assert all(row["speed_up"] < row["workers"] * 1.05 for row in predicted)


def test_quality_rows_have_the_published_ones_beside_them() -> None:
    row = next(
        row for row in rows({(5, 1): [0.9], (5, 32): [0.8]}) if row.get("factor") == "linear" and row["workers"] == 32
    )
    assert (row["published_top1"], row["published_minutes"], row["vs_baseline"]) == (0.73078, 394, pytest.approx(-0.1))
    assert quality_rows.runs_of([]) == []
