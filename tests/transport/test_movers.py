"""Movers by name, and NCCL in front of one where there are GPUs."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("torch")
from tests.transport.fake import Exchange, FakeMover
from tests.transport.test_gloo import Store

from hora.config.settings import Settings
from hora.errors import EnvironmentUnfit
from hora.transport import device, movers
from hora.transport.gloo import GlooMover
from hora.transport.nccl import NcclMover
from hora.wire.messages import Peer


def test_gloo_listens_where_the_others_reach_this_host() -> None:
    peers = (Peer(0, 0, 1, "here", "127.0.0.1"),)
    mover = movers.make_mover("gloo", 0, peers, Store(), Settings())
    assert isinstance(mover, GlooMover)
    mover.close()


def test_an_interface_that_is_not_there_is_named() -> None:
    peers = (Peer(0, 0, 1, "here", "127.0.0.1"),)
    with pytest.raises(EnvironmentUnfit, match="nonesuch0"):
        movers.make_mover("gloo", 0, peers, Store(), Settings(gloo_iface="nonesuch0"))


def test_gloo_without_torch_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hora.transport.gloo", None)
    with pytest.raises(EnvironmentUnfit, match="Install torch on every host"):
        movers.make_mover("gloo", 0, (), Store(), Settings())


@pytest.mark.parametrize(
    ("hosts", "given", "interface"),
    [
        (("here", "here"), "", ""),  # on one host nobody has to be reached
        (("here", "there"), "", "lo"),
        (("here", "there"), "eth7", "eth7"),
    ],
)
def test_nccl_only_where_there_is_a_gpu(
    monkeypatch: pytest.MonkeyPatch, hosts: tuple[str, str], given: str, interface: str
) -> None:
    host = FakeMover(Exchange(), 0)
    peers = tuple(Peer(rank, rank, 1, name, "127.0.0.1") for rank, name in enumerate(hosts))
    monkeypatch.setattr(device, "kind", lambda: "")
    assert movers.with_gpus(host, 0, peers, Store(), Settings()) is host
    monkeypatch.setattr(device, "kind", lambda: "cuda")
    mover = movers.with_gpus(host, 0, peers, Store(), Settings(gloo_iface=given))
    assert isinstance(mover, NcclMover) and mover.carries == ("cuda",)
    assert mover._interface == interface
