"""Many hosts in one process, which agree by the core's own sources: the same order everywhere, and what it costs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.native.simulator import build_crowd, crowd

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler")
OPERATIONS = 161


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("crowd") / "crowd"
    build_crowd(made)
    return made


def test_a_host_tells_its_neighbours_and_nobody_else(program: Path) -> None:
    """What a host sends in a step does not grow with hosts or its workers: a number an operation and neighbour."""
    for hosts, workers in ((8, 1), (128, 1), (128, 8)):
        cost = crowd(program, hosts=hosts, workers=workers, steps=2)
        neighbours = 5  # at most: four that it hears of, and one that it tells
        assert max(cost["frames"]) <= OPERATIONS * neighbours
        assert max(cost["bytes"]) <= OPERATIONS * neighbours * 8 + max(cost["frames"]) * 40  # a number, and a header
        if workers > 1:  # mostly not the leader is last, which would tell at once: several numbers go in a frame
            assert max(cost["frames"]) <= OPERATIONS * neighbours / 2


def test_sums_that_ride_along_are_right_on_all_ranks(program: Path) -> None:
    """The program checks them."""
    crowd(program, hosts=40, workers=8, bytes=4, operations=20)
    crowd(program, hosts=7, workers=3, bytes=400, operations=20)


def test_more_than_256_workers_on_two_hosts(program: Path) -> None:
    crowd(program, hosts=2, workers=200, bytes=4, operations=10)


@pytest.mark.parametrize("hosts", [150, pytest.param(1000, marks=pytest.mark.long)])  # a thousand take 8 GB of memory
def test_many_hosts_and_a_seed_that_replays(hosts: int, program: Path) -> None:
    """All agree on one order (the program checks that), which is the seed's."""

    def order(seed: int) -> str:
        return str(crowd(program, hosts=hosts, workers=1, operations=6, steps=1, seed=seed)["order"])

    assert order(1) == order(1) != order(2)
