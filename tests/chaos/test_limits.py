"""Limits and full disks: each ends in one right sentence."""

from __future__ import annotations

import os

import pytest
from tests.chaos.limits import ROWS, Row, idle_sockets, run


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in ROWS if not row.slow])
def test_a_machine_that_refuses_is_named(row: Row) -> None:
    if row.as_user and os.geteuid() != 0:
        pytest.skip("a limit on processes counts all of this user's; root can be somebody else")
    assert run(row).misses == ()


@pytest.mark.slow
@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in ROWS if row.slow])
def test_without_shared_memory_it_runs_on_gloo(row: Row) -> None:
    assert run(row).misses == ()


def test_a_crowd_of_idle_sockets_keeps_nobody_out() -> None:
    assert idle_sockets().misses == ()
