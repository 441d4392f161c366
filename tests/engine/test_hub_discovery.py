"""The ways that need no cluster: what a PMI server says, and torch's store with somebody who listens."""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from hora.config.launcher_hints import LauncherHints
from hora.config.world import World
from hora.engine.hub_address import HubAddress
from hora.engine.hub_discovery import (
    HubDiscovery,
    MungeDiscovery,
    PmiDiscovery,
    TorchStoreDiscovery,
    addresses_of,
    discoveries,
)

NOTICE = HubAddress("node1", ("10.0.0.1:4000", "[fd00::1]:4000"), bytes(range(32)))
WAIT_S = 20.0


def seen(way: HubDiscovery) -> HubAddress:
    end = time.monotonic() + WAIT_S
    while (notice := way.look()) is None:
        assert time.monotonic() < end, way.what
        time.sleep(0.01)
    return notice


class Mpiexec:
    """A PMI-1 server for any number of processes: names are published and looked up, as hydra answers."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.ends: list[socket.socket] = []

    def connect(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        self.ends += [ours, theirs]
        threading.Thread(target=self.serve, args=(ours,), daemon=True).start()
        return theirs

    def serve(self, sock: socket.socket) -> None:
        for line in sock.makefile("r"):
            words = dict(word.split("=", 1) for word in line.split())
            if words["cmd"] == "publish_name":
                self.names[words["service"]] = words["port"]
                answer = "cmd=publish_result rc=0"
            elif words["service"] in self.names:
                answer = f"cmd=lookup_result rc=0 port={self.names[words['service']]}"
            else:
                answer = "cmd=lookup_result rc=1"
            sock.sendall(f"{answer}\n".encode())


@pytest.fixture
def mpiexec(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mpiexec]:
    monkeypatch.setattr("hora.engine.hub_discovery._spoken", True)  # nothing to take leave of when the tests end
    server = Mpiexec()
    yield server
    for end in server.ends:
        end.close()


def test_a_name_published_with_mpiexec(mpiexec: Mpiexec) -> None:
    lowest, other = (PmiDiscovery(mpiexec.connect().fileno(), "key") for _ in range(2))
    assert other.look() is None
    lowest.offer(NOTICE)
    assert other.look() == NOTICE
    assert PmiDiscovery(mpiexec.connect().fileno(), "another").look() is None


def test_a_secret_goes_through_torchs_store_sealed() -> None:
    distributed = pytest.importorskip("torch.distributed")
    with socket.create_server(("127.0.0.1", 0)) as free:
        master = f"127.0.0.1:{free.getsockname()[1]}"
    lowest, other = (TorchStoreDiscovery(master, False, rank, (0, 1), "key", WAIT_S) for rank in range(2))
    lowest.offer(NOTICE)
    assert seen(other) == NOTICE
    host, _, port = master.partition(":")
    reader = distributed.TCPStore(host, int(port), None, False)
    for key in ("offer", "1", "1/sealed"):
        assert NOTICE.secret not in reader.get(f"hora/key/{key}")


def test_which_ways_a_launch_has(tmp_path: object) -> None:
    world = World(rank=0, size=2, job_key="job", rendezvous_dir=str(tmp_path))

    def kinds(**hints: object) -> list[str]:
        changed = World(rank=0, size=2, job_key="job", rendezvous_dir=str(tmp_path), hints=LauncherHints(**hints))  # type: ignore[arg-type]
        return [type(way).__name__ for way in discoveries(changed, (0, 1), 5.0)]

    assert [type(way).__name__ for way in discoveries(world, (0, 1), 5.0)] == ["FileDiscovery"]
    assert kinds(master="127.0.0.1:1") == ["FileDiscovery", "TorchStoreDiscovery"]
    assert kinds(pmi_fd=99) == ["FileDiscovery", "PmiDiscovery"]
    assert "PmiDiscovery" not in [
        type(way).__name__ for way in discoveries(World(size=3, hints=LauncherHints(pmi_fd=99)), (0, 1), 5.0)
    ]


def test_the_lowest_rank_listens_where_its_launcher_knows_it() -> None:
    assert addresses_of(World(host="nowhere.invalid"), ["lo"])[0] == "127.0.0.1"
    everywhere = addresses_of(World(host="nowhere.invalid"), [])
    [first, *_] = everywhere
    assert addresses_of(World(host=first), []) == (first,)


class PlainMunge:
    """Seals nothing: who may read what is not what is tried here."""

    def seal(self, text: bytes) -> bytes:
        return text

    unseal = seal


def test_who_asks_by_munge_is_answered_while_others_connect_and_say_nothing() -> None:
    munge: Any = PlainMunge()
    key = secrets.token_hex(8)
    offers = MungeDiscovery(munge, ["127.0.0.1"], key)
    offers.offer(HubAddress("node1", ("127.0.0.1:1",), bytes(32)))
    silent = []
    try:
        for port in offers._ports:
            with contextlib.suppress(OSError):
                silent += [socket.create_connection(("127.0.0.1", port)) for _ in range(4)]
        assert len(silent) >= 4
        began = time.monotonic()
        assert seen(MungeDiscovery(munge, ["127.0.0.1"], key)).host == "node1"
        assert time.monotonic() - began < 10.0, "each of them was waited for"
    finally:
        offers.close()
        for sock in silent:
            sock.close()
