"""What the table takes of a host's memory: the pages that exist of the segment, which is what ``free`` and a user see.

Counted are the blocks of the memory file (``st_blocks``): all that is shared by the workers of a host, without tensors.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from tests.engine.table_crew import Crew

from hora.config.settings import Settings
from hora.transport import shm

pytestmark = pytest.mark.skipif(not shm.available(), reason=shm.why_not())
MB = 1e6


class Measured(Crew):
    """A crew that keeps the memory file open, to ask how much of it exists."""

    def __init__(self, size: int) -> None:
        self.kept = -1
        create = shm.create_segment

        def keeping(*arguments: object, **named: object) -> shm.Segment:
            segment = create(*arguments, **named)  # type: ignore[arg-type]
            self.kept = os.dup(segment.fd)
            return segment

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shm, "create_segment", keeping)
            super().__init__(size, Settings(spin_us=0))

    def taken(self) -> int:
        return os.fstat(self.kept).st_blocks * 512

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        os.close(self.kept)


def _steps(crew: Crew, names: int, elements: int, steps: int = 2) -> None:
    """All ranks submit every name, and then wait for it."""
    arrays = [np.zeros((names, elements), np.float32) for _ in crew.ranks]
    for _ in range(steps):
        tickets = []
        for array in arrays:
            array[:] = 1.0
        for name in range(names):
            tickets += [me.allreduce(a[name], f"{elements} {name}") for me, a in zip(crew.ranks, arrays, strict=True)]
        for ticket in tickets:
            ticket.wait()
    for array in arrays:
        np.testing.assert_array_equal(array, float(len(crew.ranks)))


def test_24_workers_and_600_names() -> None:
    """It once took 9 KB a worker and name: 131 MB. The aim is 10, and 25 is the bound."""
    with Measured(24) as crew:
        _steps(crew, 600, 1)
        assert crew.taken() <= 10 * MB


def test_what_rides_along_does_not_add_up() -> None:
    """Small tensors of 8 KB would be 24 x 600 x 8 KB at once: above a bound they go through the slots, as
    large ones do."""
    with Measured(4) as crew:
        _steps(crew, 1000, 2048, steps=1)
        assert crew.taken() <= 25 * MB


def test_names_that_come_and_go_take_no_more() -> None:
    with Measured(2) as crew:
        _steps(crew, 3000, 1)
        before = crew.taken()
        for round_ in range(3):
            _steps(crew, 1000, 2 + round_)
        assert crew.taken() <= before + 1 * MB
