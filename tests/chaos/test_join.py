"""``join()`` while another Python thread keeps the GIL: every sum is of those who had not yet joined."""

from __future__ import annotations

import pytest
from tests.chaos.rounds import joins


@pytest.mark.parametrize(("transport", "size", "count"), [("shm", 4, 80), ("gloo", 2, 16)])
def test_uneven_epochs_with_a_busy_thread(transport: str, size: int, count: int) -> None:
    [found] = joins(count, seed=1, transport=transport, size=size)
    assert found.misses == ()
