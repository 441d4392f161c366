"""The calls themselves."""

from __future__ import annotations

import os

import pytest

from hora.lab.doctor.syscalls import CALLS, attempt


@pytest.mark.parametrize("name", CALLS)
def test_every_call_works_and_leaves_no_descriptor(name: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    assert attempt(CALLS[name]) == ""
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_refusal_is_told() -> None:
    def refuse() -> None:
        raise PermissionError(1, "Operation not permitted")

    assert attempt(refuse) == "Operation not permitted"
