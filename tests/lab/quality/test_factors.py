"""Every factor is one change against one worker: with the study's numbers the rates are those of its tables."""

from __future__ import annotations

from typing import Any

import pytest

from hora.errors import UsageError
from hora.lab.quality.factors import BASELINE, FACTORS, Recipe, parse_factors
from hora.predict.published import tables

IMAGENET = 1_281_167
STUDY = tables()["thesis"]


def rates(factor: str, workers: int, epochs: float = 90) -> list[float]:
    options = Recipe.of("imagenet", {}, epochs).options(FACTORS[factor], workers)
    plan = options.plan(IMAGENET, workers)
    return [plan.lr_at_epoch(epoch) for epoch in range(12)]


@pytest.mark.parametrize(
    "factor, name, peak",
    [
        (factor, name, float(peak))
        for factor, name in (("stepping", "stepping_5"), ("gradual5", "gradual_5"), ("gradual10", "gradual_10"))
        for peak in STUDY["warmup_values"][name]
    ],
)
def test_warm_ups_of_90_epochs_are_the_studys(factor: str, name: str, peak: float) -> None:
    known = STUDY["warmup_values"][name][f"{peak:g}"]
    assert rates(factor, round(peak / 0.05))[: len(known)] == pytest.approx(known, abs=1e-5)


@pytest.mark.parametrize(
    "experiment, factor", [("5", "linear"), ("6", "stepping"), ("7", "reduced-batch"), ("9", "gradual10")]
)
def test_peak_rates_are_the_studys(experiment: str, factor: str) -> None:
    said = STUDY["experiments"][experiment]
    options = Recipe.of("imagenet", {}).options(FACTORS[factor], 32)
    assert options.plan(IMAGENET, 32).peak_lr == pytest.approx(said["lr"]["32"])
    assert options.batch == said["batch_per_gpu"]


def test_naive_keeps_the_rate_of_one_worker_and_nothing_else_changes() -> None:
    recipe = Recipe.of("imagenet", {})
    one, naive = recipe.options(BASELINE, 1), recipe.options(FACTORS["naive"], 32)
    assert naive.plan(IMAGENET, 32).peak_lr == one.plan(IMAGENET, 1).peak_lr == 0.05
    assert (naive.batch, naive.decay, naive.epochs, naive.warmup) == (one.batch, one.decay, one.epochs, "none")


def test_short_runs_keep_the_proportions() -> None:
    recipe = Recipe.of("cifar10", {}, 8)
    assert recipe.given["decay"] == "4.1:0.125,6.1:0.025,7.1:0.005"
    plan = recipe.options(FACTORS["gradual10"], 16).plan(50_000, 16)
    assert plan.warmup.epochs == pytest.approx(10 / 90 * 8, rel=1e-2)
    assert plan.lr_at_epoch(0) < 2 * plan.one_worker_lr < plan.lr_at_epoch(plan.warmup.epochs) == plan.peak_lr


def test_what_is_given_is_kept() -> None:
    recipe = Recipe.of("cifar10", {"decay": "5", "batch": 64}, 8)
    assert recipe.options(FACTORS["linear"], 4).decay == "5"
    assert recipe.options(FACTORS["reduced-batch"], 4).batch == 16


@pytest.mark.parametrize(
    "given, word",
    [
        ({"rule": "none"}, "rule"),
        ({"emulate_workers": 4}, "emulate_workers"),
        ({"seed": 3}, "seed"),
        ({"batch": 0}, "batch"),
    ],
    ids=["rule", "emulated", "seed", "batch"],
)
def test_what_the_experiment_changes_cannot_be_set(given: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        Recipe.of("mnist", given)


@pytest.mark.parametrize("text", ["", "naive,", "magic", "gradual:x", "iteration:0"])
def test_unknown_factors_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--factors"):
        parse_factors(text)


def test_any_warm_up_is_a_factor() -> None:
    (factor,) = parse_factors("iteration:2")
    options = Recipe.of("mnist", {}, 6).options(factor, 8)
    assert options.warmup == "iteration:2" and options.rule == "linear"
