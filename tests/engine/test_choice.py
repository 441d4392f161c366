"""Which transport a generation gets."""

from __future__ import annotations

from hora.config.settings import Settings
from hora.engine.choice import choose
from hora.wire.messages import Hello


def hosts_of(*hosts: str, settings: Settings = Settings(), core: bool = True) -> str:  # noqa: B008
    size = len(hosts)
    hellos = [Hello(0, r, size, 1, h, tuple(range(size)), settings, core=core or r > 0) for r, h in enumerate(hosts)]
    return choose(hellos)[0]


def test_the_transport_follows_from_where_the_workers_are() -> None:
    assert hosts_of("a", "a") == "shm" and hosts_of("a", "b") == hosts_of("a", "a", "b") == "shm+tcp"
    assert hosts_of("a", "a", "b", core=False) == "gloo"
    assert hosts_of(*["a"] * 128, *["b"] * 128) == "shm+tcp" and hosts_of(*["a"] * 129, *["b"] * 128) == "shm+gloo"
    by_gloo = Settings(transport="shm+gloo")
    assert hosts_of("a", "a", "b", settings=by_gloo) == "shm+gloo" and hosts_of("a", "b", settings=by_gloo) == "gloo"
    assert hosts_of("a", "a", settings=by_gloo) == "shm"
    assert hosts_of("a", "a", core=False) == "gloo"
    assert hosts_of("a", "a", "b", settings=Settings(hierarchical=False)) == "gloo"
    assert hosts_of("a", "a", "b", settings=Settings(transport="gloo")) == "gloo"
    assert hosts_of("a", "a", settings=Settings(transport="gloo")) == "gloo"
    assert hosts_of(*["a"] * 256) == "shm" and hosts_of(*["a"] * 257) == "gloo"
    assert hosts_of(*["a"] * 257, "b") == "gloo"
    mpi = Settings(transport="mpi")
    assert hosts_of("a", "a", "b", settings=mpi) == "shm+mpi" and hosts_of("a", "b", settings=mpi) == "mpi"
    assert hosts_of("a", "a", settings=mpi) == "mpi"
