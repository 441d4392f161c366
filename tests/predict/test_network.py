"""Allreduce times against a ring that is walked turn by turn, and against each other."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hora.errors import UsageError
from hora.predict.network import ALGORITHMS, Algorithm, Cluster, Link, parse_link, traffic

SIZES = st.floats(1.0, 1e9)
RATES = st.floats(1e6, 1e11)
LATENCIES = st.floats(0.0, 1e-3)


def walk(size: float, cluster: Cluster, inside: Link, between: Link) -> float:
    """A ring, turn by turn: everybody passes an n-th on, and the turn lasts as long as its slowest hop."""
    n = cluster.workers
    total = 0.0
    for _ in range(2 * (n - 1)):
        hops = []
        for worker in range(n):
            crosses = worker // cluster.per_host != (worker + 1) % n // cluster.per_host
            ways = [inside, between] if crosses else [inside]
            hops.append((between if crosses else inside, min(float(way.bytes_per_s) for way in ways)))
        total += max(float(link.latency_s) + size / n / rate for link, rate in hops)
    return total


def allreduce_s(size: float, cluster: Cluster, inside: Link, between: Link, algorithm: Algorithm) -> float:
    return float(traffic(cluster, algorithm).seconds(size, inside, between))


@given(
    workers=st.integers(2, 40), per_host=st.integers(1, 8), size=SIZES, rates=st.tuples(RATES, RATES), late=LATENCIES
)
def test_a_ring_takes_what_its_turns_take(
    workers: int, per_host: int, size: float, rates: tuple[float, float], late: float
) -> None:
    cluster, inside, between = Cluster(workers, per_host), Link(rates[0], late), Link(rates[1], late)
    found = allreduce_s(size, cluster, inside, between, "ring")
    assert float(found) == pytest.approx(walk(size, cluster, inside, between), rel=1e-9)


def test_hosts_first_is_a_ring_inside_and_one_between() -> None:
    inside, between = Link(8e9, 3e-6), Link(1e9, 4e-5)
    whole = allreduce_s(1e8, Cluster(24, 4), inside, between, "hierarchical")
    parts = walk(1e8, Cluster(4, 4), inside, inside) + walk(1e8, Cluster(6, 1), between, between)
    assert float(whole) == pytest.approx(parts)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_more_workers_never_take_less(algorithm: str) -> None:
    times = [
        float(allreduce_s(1e8, Cluster(4 * hosts, 4), Link(1e10, 5e-6), Link(1e9, 5e-5), algorithm))  # type: ignore[arg-type]
        for hosts in range(1, 200)
    ]
    assert times == sorted(times) and math.isfinite(times[-1])


def test_where_latency_rules_a_tree_wins_and_where_bytes_rule_it_does_not() -> None:
    far, near = Cluster(4096, 4), Cluster(8, 4)
    inside, between = Link(1e10, 5e-6), Link(5e9, 1e-4)
    small, large = 4e3, 1e9
    assert allreduce_s(small, far, inside, between, "tree") < allreduce_s(small, far, inside, between, "ring")
    assert allreduce_s(large, near, inside, between, "ring") < allreduce_s(large, near, inside, between, "tree")


@pytest.mark.parametrize("text", ["", "fast", "10", "gbit", "-1gbit", "10gbit:slow", "0mb", "1gb:-3us"])
def test_what_is_no_link_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="10gbit:50us"):
        parse_link(text)


def test_an_empty_cluster_is_refused() -> None:
    with pytest.raises(UsageError, match="0 workers"):
        Cluster(0, 4)
