"""The figures against the formulas of the two benchmarks, worked out another way."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hora.workloads.synthetic import forms

times = st.lists(st.floats(0.01, 10.0), min_size=1, max_size=30)


@given(batch=st.integers(1, 512), seconds=times)
def test_tf_cnn_benchmarks_speed(batch: int, seconds: list[float]) -> None:
    found = forms.speed(batch, seconds)
    speeds = [batch / each for each in seconds]
    middle = statistics.median(speeds)
    assert found.mean == pytest.approx(batch * len(seconds) / sum(seconds))
    assert found.uncertainty == pytest.approx(statistics.pstdev(speeds) / len(speeds) ** 0.5, abs=1e-7)
    assert found.jitter == pytest.approx(1.4826 * statistics.median(abs(each - middle) for each in speeds), abs=1e-9)


@given(speeds=times)
def test_horovods_interval(speeds: list[float]) -> None:
    mean, interval = forms.mean_and_interval(speeds)
    assert mean == pytest.approx(statistics.fmean(speeds))
    assert interval == pytest.approx(1.96 * statistics.pstdev(speeds), abs=1e-7)


def test_the_total_stands_between_64_dashes() -> None:
    assert forms.tf_total(210.1549) == ["-" * 64, "total images/sec: 210.15", "-" * 64]
