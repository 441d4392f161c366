"""Workers that are stopped in the middle of a collective: named and given up, or they go on as if nothing had been."""

from __future__ import annotations

import pytest
from tests.chaos.rounds import FAIL_S, WARN_S, Job, stops
from tests.launch.jobs import wait_until


@pytest.mark.parametrize(("transport", "count"), [("shm", 4), ("gloo", 2)])
def test_a_stopped_worker_goes_on_or_is_named_given_up_and_told(transport: str, count: int) -> None:
    found = list(stops(count, seed=1, transport=transport))
    assert len(found) == count and [one for one in found if one.misses] == []


@pytest.mark.long  # on a busy machine thousands of stops may be needed until one is inside the lock
def test_a_worker_that_is_stopped_inside_the_lock() -> None:
    [on, for_good] = stops(2, seed=1, in_lock=True)
    assert on.misses == () and "in the lock, and on" in on.what
    assert for_good.misses == () and "in the lock, for good" in for_good.what


def test_a_stopped_worker_is_told_of_before_it_is_given_up() -> None:
    with Job(2) as job:
        job.ready()
        job.stop(1)
        told = f"rank 1 (pid {job.pids[1]}) has not answered for"
        assert job.hear({0}, 30.0) and WARN_S < FAIL_S
        wait_until(lambda: told in job.output, 10.0, "the launcher to pass the warning on")
        assert f"kill -CONT {job.pids[1]} lets it go on" in job.output
        job.resume(1)
        assert job.hear({1}, 30.0) and list(job.ends()) == []
