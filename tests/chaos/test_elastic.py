"""A few storms over elastic jobs; ``python -m tests.chaos elastic --count 300`` has more, and every framework."""

from __future__ import annotations

import pytest
from tests.chaos.elastic import storms

from hora.transport import shm

pytestmark = pytest.mark.skipif(not shm.available(), reason="the C core is not built")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_random_kills_stops_and_arrivals() -> None:
    found = list(storms(3, seed=5, frameworks=("numpy",)))
    assert len(found) == 3 and [one for one in found if one.misses] == []
