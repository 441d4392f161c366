"""A step's parts: closed forms, simulated workers, and the limits of overlap."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hora.predict.step import BACKWARD, expected_max, step_parts


def test_the_largest_of_a_few_has_a_closed_form() -> None:
    assert expected_max(1) == 0.0
    assert expected_max(2) == pytest.approx(1 / math.sqrt(math.pi), abs=1e-6)
    assert expected_max(3) == pytest.approx(1.5 / math.sqrt(math.pi), abs=1e-6)


def test_the_largest_of_many_grows_as_it_should() -> None:
    drawn = np.random.default_rng(3).standard_normal((20_000, 32)).max(axis=1)
    assert expected_max(32) == pytest.approx(drawn.mean(), abs=5 * drawn.std() / math.sqrt(len(drawn)))
    shares = [expected_max(n) / math.sqrt(2 * math.log(n)) for n in (8, 64, 512, 4096)]
    assert shares == sorted(shares) and 0.85 < shares[-1] < 1


@given(compute=st.floats(1e-3, 10), comm=st.floats(0, 100), exposed=st.floats(0, 1), jitter=st.floats(0, 0.2))
def test_no_more_is_hidden_than_there_is_to_hide_behind(
    compute: float, comm: float, exposed: float, jitter: float
) -> None:
    parts = step_parts(expected_max(8), compute, comm, exposed, jitter)
    hidden = comm - float(parts.exposed_s)
    assert -1e-9 <= hidden <= BACKWARD * compute + 1e-9
    assert float(parts.exposed_s) >= exposed * comm - 1e-9
    assert float(parts.step_s) >= compute
