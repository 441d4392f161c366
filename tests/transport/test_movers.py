"""Movers by name, and NCCL in front of one where there are GPUs."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("torch")
from tests.transport.fake_cuda import FakeCuda, installed
from tests.transport.test_gloo import Store

from hora.config.settings import Settings
from hora.errors import EnvironmentUnfit
from hora.transport import cuda, movers
from hora.transport.fake import Exchange, FakeMover
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


def test_nccl_only_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    host = FakeMover(Exchange(), 0)
    monkeypatch.setattr(cuda.Cuda, "present", lambda self: False)
    assert movers.with_gpus(host, 0, Store(), Settings()) is host
    with installed(FakeCuda()):
        assert isinstance(movers.with_gpus(host, 0, Store(), Settings()), NcclMover)
