"""What the doctor's workers bring and expect, and the system calls."""

from __future__ import annotations

import os

import pytest

from hora.doctor.probe import CALLS, attempt, expected, pattern


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("count", [1, 250, 251, 252, 1000])
def test_the_expected_sum_is_the_sum(size: int, count: int) -> None:
    brought = [pattern(rank, count) for rank in range(size)]
    assert list(expected(size, count)) == [sum(column) for column in zip(*brought, strict=True)]


@pytest.mark.parametrize("name", CALLS)
def test_every_call_works_and_leaves_no_descriptor(name: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    assert attempt(CALLS[name]) == ""
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_refusal_is_told() -> None:
    def refuse() -> None:
        raise PermissionError(1, "Operation not permitted")

    assert attempt(refuse) == "Operation not permitted"
