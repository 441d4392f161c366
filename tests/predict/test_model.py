"""Forecasts: what is known exactly comes out exactly, batch sizes lie on a line, links can be exchanged."""

from __future__ import annotations

import numpy as np
import pytest
from tests.predict.test_network import walk

from hora.errors import UsageError
from hora.predict.model import FirstBatch, Model, Setting
from hora.predict.network import Cluster, Link


def exact(**changes: float) -> dict[str, np.ndarray]:
    known = {
        "inside": 1e10, "between": 1e9, "inside_latency": 0.0, "latency": 0.0, "exposed": 1.0, "jitter": 0.0,
        "scatter": 0.0, "growth": 0.0,
    }  # fmt: skip
    return {name: np.full(3, value) for name, value in (known | changes).items()}


def test_without_doubt_there_is_no_interval() -> None:
    model = Model(Setting(1e8, 4, "ring"), exact(), {32: np.full(3, 0.5)})
    found = model.forecast(32, 8)
    step = 0.5 + walk(1e8, Cluster(8, 4), Link(1e10), Link(1e9))
    assert found.step_s.low == found.step_s.high == pytest.approx(step)
    assert found.images_per_s.middle == pytest.approx(32 * 8 / step)
    assert found.efficiency.middle == pytest.approx(0.5 / step)
    assert (found.hosts, found.compute_s) == (2, 0.5) and found.exposed_s == pytest.approx(step - 0.5)


def test_scatter_widens_the_interval_and_not_the_middle() -> None:
    draws = {name: np.full(4000, values[0]) for name, values in exact(scatter=0.02).items()}
    found = Model(Setting(1e8, 4, "ring"), draws, {32: np.full(4000, 0.5)}).forecast(32, 1)
    assert found.step_s.middle == 0.5
    assert np.log([found.step_s.low / 0.5, found.step_s.high / 0.5]) == pytest.approx([-0.0329, 0.0329], abs=0.003)


@pytest.mark.parametrize(("batch", "expected"), [(32, 0.2), (48, 0.25), (64, 0.3), (128, 0.5), (16, 0.15)])
def test_batches_lie_on_the_line_through_those_that_are_known(batch: int, expected: float) -> None:
    model = Model(Setting(0, 4, "ring"), exact(), {32: np.full(3, 0.2), 64: np.full(3, 0.3)})
    assert model.compute_s(batch) == pytest.approx(expected)
    alone = Model(Setting(0, 4, "ring"), exact(), {32: np.full(3, 0.2)})
    assert alone.compute_s(batch) == pytest.approx(0.2 * batch / 32)


def test_a_first_batch_counts_once_in_two_hundred() -> None:
    first = FirstBatch(200, {1: 11.0, 2: 20.5})
    model = Model(Setting(0, 4, "ring"), exact(), {32: np.full(3, 0.5)}, first)
    assert model.step_s(32, 1) == pytest.approx((11.0 + 199 * 0.5) / 200)
    assert model.step_s(32, 16) == pytest.approx(0.6)
    assert model.steady().step_s(32, 16) == pytest.approx(0.5)


def test_another_link_between_hosts_changes_nothing_inside() -> None:
    model = Model(Setting(1e8, 2, "hierarchical"), exact(), {32: np.full(3, 0.1)})
    slow = model.over(Link(1e8, 1e-4))
    assert slow.forecast(32, 2) == model.forecast(32, 2)
    added = slow.forecast(32, 4).step_s.middle - model.forecast(32, 4).step_s.middle
    assert added == pytest.approx(1e8 / 1e8 - 1e8 / 1e9 + 2e-4)


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(UsageError, match="batch of 0"):
        Model(Setting(0, 4, "ring"), exact(), {32: np.full(3, 0.2)}).forecast(0, 2)
