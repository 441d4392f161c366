"""The gatherer between hub and launcher: what a lost connection means."""

from __future__ import annotations

import time

from hora.config.settings import Settings
from hora.elastic.gather import Gatherer
from hora.elastic.membership import ElasticLimits, EndWorker, Membership
from hora.engine.gathering import MembersReady
from hora.wire.messages import Hello


def _started(workers: int) -> Gatherer:
    """In its first generation."""
    gatherer = Gatherer(Membership(ElasticLimits(1, workers)), lambda: None)
    gatherer.hosts({"h": workers})
    gatherer.take_orders()
    outcomes = [
        outcome
        for worker in range(workers)
        for outcome in gatherer.hello(Hello(0, worker, 0, 100 + worker, "h", (), Settings()), time.monotonic())
    ]
    assert [type(outcome) for outcome in outcomes] == [MembersReady]
    return gatherer


def test_a_worker_whose_connection_broke_is_given_up() -> None:
    gatherer = _started(2)
    gatherer.ended(1, "its connection closed")
    gatherer.expire(time.monotonic() + 100)
    assert [order.worker for order in gatherer.take_orders() if isinstance(order, EndWorker)] == [1]


def test_one_that_has_left_in_good_order_may_take_its_time_to_end() -> None:
    gatherer = _started(2)
    gatherer.ended(1, "its connection closed", left=True)
    gatherer.expire(time.monotonic() + 100)
    assert gatherer.take_orders() == []
