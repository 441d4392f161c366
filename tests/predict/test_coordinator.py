"""The simulated job: counts that follow from the protocol, the same world from the same seed, cost that grows."""

from __future__ import annotations

import pytest
from tests.predict.coordinator import simulate


@pytest.mark.parametrize(("ranks", "groups"), [(1, 1), (5, 4), (32, 8)])
def test_every_rank_announces_every_group_once(ranks: int, groups: int) -> None:
    for cost in simulate(ranks, gradients=40, groups=groups):
        assert cost.received == ranks * groups
        # Every rank hears of every gradient, in at least one message and at most one a group.
        assert ranks <= cost.sent <= ranks * groups


def test_what_is_known_travels_as_numbers() -> None:
    first, *later = simulate(16, gradients=40, steps=4)
    for cost in later:
        assert cost.received_bytes < first.received_bytes / 10
        assert cost.received_bytes == later[0].received_bytes


def test_a_step_lasts_as_long_as_its_slowest_rank_and_the_way_there_and_back() -> None:
    [cost] = simulate(4, steps=1, gradients=4, groups=1, jitter=0.0, compute_s=1.0, latency_s=0.25)
    assert cost.last_announced_s == 1.0
    assert cost.ended_s > 1.5
    assert cost.busy_s >= 4 * 5e-6 and cost.delay_s == cost.ended_s - 1.0


def test_sending_is_paid_for_by_the_message() -> None:
    dear = simulate(8, steps=2, gradients=10, groups=2, sending_s=1.0)[1]
    assert dear.busy_s >= dear.sent
