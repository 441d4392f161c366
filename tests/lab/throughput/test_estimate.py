"""Intervals hold what they should, as often as they say."""

from __future__ import annotations

import numpy as np

from hora.lab.throughput.estimate import LEVEL, draws_of_median, estimate


def test_the_interval_of_one_run_holds_the_median_as_often_as_it_says() -> None:
    rng = np.random.default_rng(7)
    held = 0
    for seed in range(60):
        steps = rng.lognormal(0.0, 0.2, size=80)  # whose median is 1
        found = estimate(draws_of_median([steps], seed=seed))
        held += found.low <= 1.0 <= found.high
    assert 0.8 <= held / 60 <= 1.0, f"{held} of 60, for {LEVEL:.0%}"


def test_runs_that_differ_make_the_interval_wide() -> None:
    steady = estimate(draws_of_median([[1.0] * 50, [1.0] * 50, [1.0] * 50]))
    drifting = estimate(draws_of_median([[1.0] * 50, [1.2] * 50, [1.4] * 50]))
    assert (steady.low, steady.high) == (1.0, 1.0)
    assert (drifting.low, drifting.value, drifting.high) == (1.0, 1.2, 1.4)


def test_a_drift_that_hits_both_alike_cancels_in_their_ratio() -> None:
    rng = np.random.default_rng(3)
    drift = (1.0, 1.5, 2.0)
    one = draws_of_median([factor * rng.normal(1.0, 0.01, 60) for factor in drift], seed=1)
    two = draws_of_median([factor * rng.normal(2.0, 0.02, 60) for factor in drift], seed=2)
    ratio = estimate(two / one)
    assert abs(ratio.value - 2.0) < 0.05
    assert ratio.high - ratio.low < 0.1 < estimate(one).high - estimate(one).low


def test_the_value_is_the_median_of_all_steps() -> None:
    assert estimate(draws_of_median([[1.0, 2.0], [3.0, 9.0, 10.0]])).value == 3.0
