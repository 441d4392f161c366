"""Plans: exactly as many workers as asked for, places as Horovod counts them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hora.config.world import detect
from hora.errors import UsageError
from hora.launch.planning.hosts import Host
from hora.launch.planning.plan import make_plan, shares

HOSTS = st.lists(st.integers(min_value=1, max_value=6), min_size=1, max_size=5).map(
    lambda slots: [Host(f"h{index}", count) for index, count in enumerate(slots)]
)


@given(HOSTS, st.integers(min_value=1, max_value=40))
def test_exactly_np_workers_or_an_error_naming_both_numbers(hosts: list[Host], np: int) -> None:
    slots = sum(host.slots for host in hosts)
    if np > slots:
        with pytest.raises(UsageError, match=rf"-np {np} .* has {slots}\."):
            make_plan(hosts, np)
        return
    plan = make_plan(hosts, np)
    assert plan.size == np
    assert [worker.rank for worker in plan.workers] == list(range(np))
    assert all(sum(worker.host == host.name for worker in plan.workers) <= host.slots for host in hosts)


@given(HOSTS)
def test_a_worker_reads_back_its_place(hosts: list[Host]) -> None:
    plan = make_plan(hosts, sum(host.slots for host in hosts))
    for worker in plan.workers:
        world = detect(plan.environment(worker))
        assert (world.rank, world.size, world.host) == (worker.rank, plan.size, worker.host)
        assert (world.local_rank, world.local_size, world.cross_rank, world.cross_size) == worker.place
        assert world.homogeneous == plan.homogeneous == (len({host.slots for host in hosts}) == 1)


def test_np_is_not_a_minimum() -> None:
    """Horovod starts 4 workers for ``-np 2 -H localhost:4``."""
    assert make_plan([Host("localhost", 4)], 2).size == 2


@pytest.mark.parametrize("np", [0, -1])
def test_no_workers(np: int) -> None:
    with pytest.raises(UsageError, match=f"-np {np}"):
        make_plan([Host("localhost", 4)], np)


@given(HOSTS, st.integers(min_value=1, max_value=30))
def test_shares_hold_every_worker_once(hosts: list[Host], np: int) -> None:
    plan = make_plan(hosts, min(np, sum(host.slots for host in hosts)))
    parts = shares(plan, "job")
    assert [task.rank for share in parts for task in share.tasks] == list(range(plan.size))
    assert [share.host for share in parts] == [host.name for host in plan.hosts]
    assert len({share.cookie for share in parts}) == len(parts), "what one host leaves behind is not another's"
    assert all(task.environment["HORA_HOSTNAME"] == share.host for share in parts for task in share.tasks)


def test_more_workers_than_can_share_a_host_are_refused() -> None:
    assert make_plan([Host("h1", 512), Host("h2", 600)], 1024).size == 1024
    with pytest.raises(UsageError, match=r"513 workers on h2.*at most 512"):
        make_plan([Host("h1", 512), Host("h2", 600)], 1025)
