"""What several runs come to: with some that failed, with none that did not, and the limit of several ranks."""

from __future__ import annotations

import math

import msgspec
import pytest
from tests.lab.throughput.outcomes import outcome

from hora.lab.throughput.pool import Pool, ratio


def test_images_per_s_are_those_of_all_workers() -> None:
    pool = Pool([outcome([0.1, 0.2, 0.1], workers=4, batch=8), outcome([0.1, 0.1, 0.1], workers=4, batch=8, turn=1)])
    assert pool.images_per_s.value == 4 * 8 / 0.1
    assert pool.facts()["runs"] == 2 and pool.facts()["memory_mb"] == pytest.approx(100e6 / 2**20, abs=1e-3)


def test_the_limit_is_the_sum_over_ranks_however_fast_each_is() -> None:
    limit = Pool([outcome([0.1] * 5, workers=2, batch=8, ranks={1: 0.2})])
    assert math.isclose(limit.images_per_s.value, 8 / 0.1 + 8 / 0.2)


def test_failed_runs_are_left_out_and_a_point_without_a_good_one_has_a_state() -> None:
    bad = msgspec.structs.replace(outcome([0.5]), state="out of memory", step_s=[])
    assert Pool([bad, outcome([0.1])]).images_per_s.value == 320.0
    nothing = Pool([bad])
    assert nothing.state == "out of memory" and nothing.facts()["images_per_s"] is None
    assert math.isnan(ratio(nothing.speed_draws, Pool([outcome([0.1])]).speed_draws).value)
    assert Pool([]).state == "not run"
