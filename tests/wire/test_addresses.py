"""Which addresses of a machine are offered to other hosts."""

from __future__ import annotations

import socket
from collections import namedtuple

import psutil
import pytest

from hora.errors import UsageError
from hora.wire.addresses import candidates, join, split

Address = namedtuple("Address", "family address")
Stats = namedtuple("Stats", "isup")


def four(address: str) -> Address:
    return Address(socket.AF_INET, address)


def six(address: str) -> Address:
    return Address(socket.AF_INET6, address)


MACHINE = {
    "lo": [four("127.0.0.1"), six("::1")],
    "eth0": [six("2001:db8::1"), four("10.0.0.1"), six("fe80::1%eth0"), Address(17, "00:11:22:33:44:55")],
    "ib0": [four("10.1.0.1"), four("169.254.3.4")],
    "docker0": [four("172.17.0.1")],
    "br-1f2e": [four("172.18.0.1")],
    "virbr0": [four("192.168.122.1")],
    "veth12ab": [six("fe80::2%veth12ab")],
    "eth1": [four("10.2.0.1")],
}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Address]]:
    found = dict(MACHINE)
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)
    monkeypatch.setattr(psutil, "net_if_stats", lambda: {name: Stats(name != "eth1") for name in found})
    return found


def test_only_what_others_might_reach(machine: dict[str, list[Address]]) -> None:
    assert candidates() == ("10.0.0.1", "10.1.0.1", "2001:db8::1")


def test_those_that_were_named(machine: dict[str, list[Address]]) -> None:
    assert candidates(["ib0"]) == ("10.1.0.1",)
    assert candidates(["docker0", "eth1"]) == ("172.17.0.1", "10.2.0.1"), "the user knows better"


def test_one_that_does_not_exist(machine: dict[str, list[Address]]) -> None:
    with pytest.raises(UsageError, match=r"no network interface 'ib7'.*br-1f2e, docker0, eth0"):
        candidates(["eth0", "ib7"])


def test_a_machine_without_a_network(machine: dict[str, list[Address]]) -> None:
    for name in set(machine) - {"lo"}:
        del machine[name]
    assert candidates() == ("127.0.0.1",)


@pytest.mark.parametrize("address", ["10.0.0.1", "2001:db8::1", "h1"])
def test_join_and_split(address: str) -> None:
    assert split(join(address, 40123)) == (address, 40123)
