"""What the doctor's workers bring and expect."""

from __future__ import annotations

import pytest

from hora.lab.doctor.probe import expected, pattern


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("count", [1, 250, 251, 252, 1000])
def test_the_expected_sum_is_the_sum(size: int, count: int) -> None:
    brought = [pattern(rank, count) for rank in range(size)]
    assert list(expected(size, count)) == [sum(column) for column in zip(*brought, strict=True)]
