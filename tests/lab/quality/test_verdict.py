"""Rows and verdicts from made-up runs whose answer is known; differences against what numpy computes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from hora.lab.quality import rows as table
from hora.lab.quality.factors import Recipe, parse_factors
from hora.lab.quality.show import budgets
from hora.lab.quality.show import table as shown
from hora.lab.quality.spread import difference
from hora.lab.quality.trials import FactorCase, QualitySetup, cells, trial
from hora.lab.quality.verdict import findings
from hora.lab.trial import TrialOutcome

DIVERGED = "step 8: loss is nan on rank 0. The run ends here (HORA_NONFINITE=stop)."


def setup(factors: str, workers: Sequence[int] = (1, 8), seeds: Sequence[int] = (1, 2, 3)) -> QualitySetup:
    recipe = Recipe.of("mnist", {"network": "horovod"}, 2)
    return QualitySetup(
        recipe=recipe, workers=tuple(workers), factors=parse_factors(factors), seeds=tuple(seeds), processes=2
    )


def ended(setup: QualitySetup, cell: FactorCase, seed: int, best: float) -> TrialOutcome:
    """A run of two epochs, the first of which was the best; nan has diverged."""
    made = trial(setup, cell, seed)
    if math.isnan(best):
        return TrialOutcome(trial=made, state="failed", error=DIVERGED, folder="nowhere")
    lines: list[dict[str, Any]] = [
        {
            "epoch": n,
            "step": 5 * (n + 1),
            "samples": 100 * (n + 1),
            "epoch_s": 10.0,
            "accuracy": 0.5,
            "val_accuracy": value,
        }
        for n, value in enumerate((best, best - 0.01))
    ]
    return TrialOutcome(trial=made, state="done", folder="nowhere", epochs=lines, result={})


def rows_of(factors: str, scores: dict[str, Sequence[float]], minutes: Sequence[float] = ()) -> list[dict[str, Any]]:
    made = setup(factors)
    done = {
        cell: [ended(made, cell, seed, best) for seed, best in enumerate(scores[cell.factor.name], start=1)]
        for cell in cells(made)
    }
    return table.make(made, done, minutes)


def verdict(factors: str, **scores: Sequence[float]) -> dict[str, str]:
    named = {name.replace("_", "-"): values for name, values in scores.items()}
    return {found["kind"]: found["title"] for found in findings(rows_of(factors, named))}


def test_a_row_has_the_mean_the_spread_and_the_epoch() -> None:
    base, linear = rows_of("linear", {"baseline": (0.95, 0.96, 0.97), "linear": (0.90, 0.92, 0.94)})
    assert base["best_top1"] == pytest.approx(0.96) and base["best_top1_spread"] == pytest.approx(0.01)
    assert (base["seeds"], base["best_epoch"], base["workers"], base["emulated"]) == (3, 1.0, 1, False)
    assert base["final_top1"] == pytest.approx(0.95)
    assert (linear["workers"], linear["processes"], linear["emulated"], linear["global_batch"]) == (8, 2, True, 512)
    assert linear["vs_baseline"] == pytest.approx(-0.04)
    assert linear["curve"]["val_error"] == pytest.approx([0.08, 0.09]) and linear["curve"]["samples"] == [100, 200]
    assert (linear["curve"]["val_error_low"][0], linear["curve"]["val_error_high"][0]) == pytest.approx((0.06, 0.10))


def test_fixed_times_are_measured_or_not_known() -> None:
    scores = {"baseline": (0.95,), "linear": (0.9,)}
    base, linear = rows_of("linear", scores, minutes=(0.1, 0.2, 9))
    assert [budget["top1"] for budget in base["budgets"]] == [None, 0.95, 0.95]
    assert [budget["epochs"] for budget in base["budgets"]] == [0, 1, 2]
    assert {budget["how"] for budget in linear["budgets"]} == {"not known"}
    assert budgets([base, linear]) is not None


@pytest.mark.parametrize("left, right", [((0.9, 0.92, 0.94), (0.95, 0.96, 0.97)), ((0.9, 0.901), (0.8, 0.95, 0.9))])
def test_differences_are_welchs(left: Sequence[float], right: Sequence[float]) -> None:
    """The statistic from numpy; the t of 4 and of about 2 degrees from a table."""
    found = difference(left, right)
    parts = [np.var(side, ddof=1) / len(side) for side in (left, right)]
    assert found.value == pytest.approx(np.mean(left) - np.mean(right))
    reach = (found.high - found.low) / 2
    assert 2.77 < reach / math.sqrt(sum(parts)) < 4.31


def test_naive_loses_and_linear_does_not() -> None:
    said = verdict(
        "naive,linear", baseline=(0.98, 0.981, 0.982), naive=(0.90, 0.91, 0.92), linear=(0.979, 0.981, 0.983)
    )  # fmt: skip
    assert "loses to one worker" in said["naive scaling"]
    assert "is as good as one worker" in said["linear rule"]


def test_a_warm_up_gives_back_what_the_linear_rule_loses() -> None:
    said = verdict(
        "linear,gradual5", baseline=(0.980, 0.981, 0.982), linear=(0.940, 0.941, 0.942), gradual5=(0.970, 0.971, 0.972)
    )  # fmt: skip
    assert "loses to one worker" in said["linear rule"]
    assert "recovers 75 %" in said["warm-up"]


def test_a_difference_within_the_spread_is_called_that() -> None:
    said = verdict(
        "linear,stepping", baseline=(0.98, 0.96, 0.97), linear=(0.95, 0.97, 0.975), stepping=(0.96, 0.97, 0.98)
    )
    assert "is as good as" in said["linear rule"] and "nothing to recover" in said["warm-up"]


def test_one_seed_is_not_called_sure() -> None:
    rows = rows_of("linear", {"baseline": (0.98,), "linear": (0.9,)})
    assert "not significant with one seed" in findings(rows)[0]["what"]
    assert rows[1]["vs_baseline_low"] is None
    assert shown(rows, "x").row_count == 2


def test_divergence_is_a_row_and_a_verdict() -> None:
    rows = rows_of("naive,linear", {"baseline": (0.98, 0.97), "naive": (0.9, math.nan), "linear": (math.nan, math.nan)})
    assert [row["state"] for row in rows] == ["done", "diverged with 1 of 2 seeds", "diverged"]
    naive, linear = findings(rows)
    assert "Diverged with 1 of 2 seeds; the mean is of the others" in naive["what"]
    assert linear["title"] == "linear: diverged" and "warm it up" in linear["change"]
    assert shown(rows, "x").row_count == 3
