"""Which addresses of a machine are offered to other hosts."""

from __future__ import annotations

import socket

import psutil
import pytest

from hora.errors import UsageError
from hora.wire import addresses
from hora.wire.addresses import candidates, interfaces, inward, join, split

MACHINE = {
    "lo": ["127.0.0.1", "::1"],
    "eth0": ["2001:db8::1", "10.0.0.1", "fe80::1"],
    "ib0": ["10.1.0.1", "169.254.3.4"],
    "docker0": ["172.17.0.1"],
    "br-1f2e": ["172.18.0.1"],
    "virbr0": ["192.168.122.1"],
    "veth12ab": ["fe80::2"],
    "eth1": ["10.2.0.1"],
}
Machine = dict[str, list[str]]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = dict(MACHINE)
    monkeypatch.setattr(addresses, "_interfaces", lambda: found)
    monkeypatch.setattr(addresses, "_is_up", lambda name: name != "eth1")
    return found


def test_the_kernel_says_what_psutil_says() -> None:
    families = (socket.AF_INET, socket.AF_INET6)
    theirs = {
        name: {entry.address.partition("%")[0] for entry in entries if entry.family in families}
        for name, entries in psutil.net_if_addrs().items()
    }
    ours = {name: set(found) for name, found in interfaces().items()}
    assert {name: found for name, found in ours.items() if found} == {n: found for n, found in theirs.items() if found}
    assert theirs.keys() <= ours.keys()
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    assert {name for name in ours if addresses._is_up(name)} == up
    assert not addresses._is_up("nonesuch")


def test_bridges_of_containers(machine: Machine) -> None:
    assert inward() == ("docker0", "br-1f2e", "virbr0", "veth12ab")


def test_only_what_others_might_reach(machine: Machine) -> None:
    assert candidates() == ("10.0.0.1", "10.1.0.1", "2001:db8::1")


def test_those_that_were_named(machine: Machine) -> None:
    assert candidates(["ib0"]) == ("10.1.0.1",)
    assert candidates(["docker0", "eth1"]) == ("172.17.0.1", "10.2.0.1"), "the user knows better"


def test_one_that_does_not_exist(machine: Machine) -> None:
    with pytest.raises(UsageError, match=r"no network interface 'ib7'.*br-1f2e, docker0, eth0"):
        candidates(["eth0", "ib7"])


def test_a_machine_without_a_network(machine: Machine) -> None:
    for name in set(machine) - {"lo"}:
        del machine[name]
    assert candidates() == ("127.0.0.1",)


@pytest.mark.parametrize("address", ["10.0.0.1", "2001:db8::1", "h1"])
def test_join_and_split(address: str) -> None:
    assert split(join(address, 40123)) == (address, 40123)
