"""Interfaces that exist here, and ones that are made up."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.lab.doctor.fakes import FakeMachine

from hora.lab.doctor import network
from hora.lab.doctor.machine import Interface, Machine

LO = Interface("lo", ("127.0.0.1",), True, 0, 65536)
DOCKER = Interface("docker0", ("172.17.0.1",), True, 0, 1500)


def test_this_machine() -> None:
    assert network.loopback(Machine({})).status == "ok"
    assert network.interfaces(Machine({})).status in ("ok", "note", "warning")
    assert network.host_name(Machine({})).status in ("ok", "note")


def test_no_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "connects", lambda address: "Network is unreachable")
    found = network.loopback(Machine({}))
    assert found.status == "problem" and "ip link set lo up" in found.fix


def test_docker_is_avoided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = FakeMachine(tmp_path)
    machine.links = [LO, Interface("ib0", ("10.0.0.5",), True, 100_000, 4092), DOCKER]
    monkeypatch.setattr(network, "candidates", lambda named: ("10.0.0.5",))
    found = network.interfaces(machine)
    assert found.status == "ok"
    assert found.told == "other hosts would be given ib0 (10.0.0.5; 100 Gbit/s, MTU 4092); not used: docker0"


def test_a_slow_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = FakeMachine(tmp_path)
    machine.links = [LO, Interface("eth0", ("10.0.0.5",), True, 100, 1500)]
    monkeypatch.setattr(network, "candidates", lambda named: ("10.0.0.5",))
    assert network.interfaces(machine).status == "warning"


def test_only_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = FakeMachine(tmp_path)
    machine.links = [LO, DOCKER]
    monkeypatch.setattr(network, "candidates", lambda named: ("127.0.0.1",))
    found = network.interfaces(machine)
    assert found.status == "note" and "not used: docker0" in found.told


def test_a_name_that_does_not_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network.socket, "gethostname", lambda: "nowhere.invalid")
    assert network.host_name(Machine({})).status == "note"
