"""Which transport a generation gets, and where its workers are reached."""

from __future__ import annotations

from typing import Any, cast

from hora.config.settings import Settings
from hora.engine.choice import choose, reachable
from hora.wire.messages import Hello


def hosts_of(*hosts: str, settings: Settings = Settings(), core: bool = True) -> str:  # noqa: B008
    size = len(hosts)
    hellos = [Hello(0, r, size, 1, h, tuple(range(size)), settings, core=core or r > 0) for r, h in enumerate(hosts)]
    return choose(hellos)[0]


def test_the_transport_follows_from_where_the_workers_are() -> None:
    assert hosts_of("a", "a") == "shm" and hosts_of("a", "b") == hosts_of("a", "a", "b") == "shm+tcp"
    assert hosts_of("a", "a", "b", core=False) == "gloo"
    assert hosts_of(*["a"] * 512, *["b"] * 512) == "shm+tcp"
    assert hosts_of(*map(str, range(1024))) == "shm+tcp" and hosts_of(*map(str, range(1025))) == "gloo"
    assert hosts_of(*[str(h % 33) for h in range(16385)]) == "shm+gloo"
    by_gloo = Settings(transport="shm+gloo")
    assert hosts_of("a", "a", "b", settings=by_gloo) == "shm+gloo" and hosts_of("a", "b", settings=by_gloo) == "gloo"
    assert hosts_of("a", "a", settings=by_gloo) == "shm"
    assert hosts_of("a", "a", core=False) == "gloo"
    assert hosts_of("a", "a", "b", settings=Settings(hierarchical=False)) == "gloo"
    assert hosts_of("a", "a", "b", settings=Settings(transport="gloo")) == "gloo"
    assert hosts_of("a", "a", settings=Settings(transport="gloo")) == "gloo"
    assert hosts_of(*["a"] * 512) == "shm" and hosts_of(*["a"] * 513) == "gloo"
    assert hosts_of(*["a"] * 513, "b") == "gloo"
    mpi = Settings(transport="mpi")
    assert hosts_of("a", "a", "b", settings=mpi) == "shm+mpi" and hosts_of("a", "b", settings=mpi) == "mpi"
    assert hosts_of("a", "a", settings=mpi) == "mpi"


def test_the_hubs_own_host_is_where_others_reach_it() -> None:
    ends = {0: ("", ""), 1: ("10.0.0.2", "10.0.0.1"), 2: ("127.0.0.1", "127.0.0.1")}
    assert reachable(ends) == {0: "10.0.0.1", 1: "10.0.0.2", 2: "10.0.0.1"}


def test_infiniband_on_every_host_is_used_without_being_asked() -> None:
    def chosen(transport: str, *fabric: bool, hosts: str = "ab") -> str:
        settings = Settings(transport=cast(Any, transport))
        everyone = tuple(range(len(fabric)))
        hellos = [
            Hello(0, r, len(fabric), 1, hosts[r % len(hosts)], everyone, settings, fabric=has)
            for r, has in enumerate(fabric)
        ]
        return choose(hellos)[0]

    assert chosen("auto", True, True, True) == "shm+ucx"
    assert chosen("auto", True, False, True) == "shm+tcp" and chosen("tcp", True, True) == "shm+tcp"
    assert chosen("ucx", False, False) == "shm+ucx" and chosen("auto", True, True, hosts="a") == "shm"
