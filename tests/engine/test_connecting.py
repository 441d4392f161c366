"""How the leaders of hosts connect, whoever else comes, and whoever goes meanwhile."""

from __future__ import annotations

import os
import resource
import socket
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from hora.config.limits import room_for_descriptors
from hora.config.settings import Settings
from hora.engine import links
from hora.engine.meet import Meeting
from hora.errors import HoraError, PeerLostError
from hora.wire.addresses import split
from hora.wire.frame import Channel
from hora.wire.listen import listen_tcp
from hora.wire.messages import Died, GivenUp, Peer

DEADLINE_S = 60.0
KEY = bytes(range(32))


class Line:
    """What all leaders have of the hub: its store, and what was said to it."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.said: list[object] = []
        self.questions = 0
        self._changed = threading.Condition()

    def key_for(self, use: str) -> bytes:
        return KEY

    def store_set(self, generation: int, key: str, value: bytes) -> None:
        with self._changed:
            self.kept[key] = value
            self._changed.notify_all()

    def store_get(
        self, generation: int, key: str, timeout_s: float, given_up: Callable[[], bool] = lambda: False
    ) -> bytes | None:
        with self._changed:
            self.questions += 1
            self._changed.wait_for(lambda: key in self.kept or given_up(), timeout_s)
            return self.kept.get(key)

    def send(self, message: object) -> None:
        self.said.append(message)

    def subscribe(self, handler: object, on_lost: object) -> None: ...
    def unsubscribe(self) -> None: ...


def meeting(line: Line, rank: int, hosts: int, *, host_timeout_s: float = 30.0, transport: str = "shm+tcp") -> Meeting:
    peers = tuple(Peer(r, r, os.getpid(), f"h{r}", "127.0.0.1") for r in range(hosts))
    channel: Any = line
    return Meeting(1, rank, peers, transport, Settings(host_timeout_s=host_timeout_s), channel, -1, -1)


def connecting(line: Line, rank: int, hosts: int, *, elastic: bool = False, host_timeout_s: float = 30.0) -> Any:
    met = meeting(line, rank, hosts, host_timeout_s=host_timeout_s)
    backend: Any = SimpleNamespace(died=None)
    return links._Connecting(met, met.peers, rank, backend, elastic=elastic)


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def together(*acts: Callable[[], object]) -> list[Any]:
    """What each returns, or raises."""
    results: list[Any] = [None] * len(acts)

    def one(i: int) -> None:
        try:
            results[i] = acts[i]()
        except BaseException as error:
            results[i] = error

    threads = [threading.Thread(target=one, args=(i,), daemon=True) for i in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    return results


def test_every_leader_has_a_connection_to_every_other_and_few_questions_are_asked() -> None:
    line, count = Line(), 6
    made = together(*(lambda r=r: connecting(line, r, count).connect(b"%d" % r) for r in range(count)))
    for one, (sockets, keys, fabrics) in enumerate(made):
        assert sockets[one] == -1 and fabrics == [b"%d" % r if r != one else b"" for r in range(count)]
        for other in range(count):
            if other == one:
                continue
            theirs, mine = made[other][1][64 * one : 64 * one + 64], keys[64 * other : 64 * other + 64]
            assert mine == theirs[32:] + theirs[:32] and len(set(mine)) > 8
            os.write(sockets[other], b"%d to %d" % (one, other))
    for one, (sockets, _, _) in enumerate(made):
        for other in set(range(count)) - {one}:
            with socket.socket(fileno=sockets[other]) as sock:
                sock.setblocking(True)
                sock.settimeout(DEADLINE_S)
                assert sock.recv(100) == b"%d to %d" % (other, one)
    assert line.questions <= 4 * count


def test_silent_strangers_hold_up_nobody() -> None:
    line = Line()

    def late() -> Any:
        where = line.store_get(1, "link/0", DEADLINE_S)
        assert where is not None
        strangers = [socket.create_connection(split(where.decode().split()[0])) for _ in range(8)]
        began = time.monotonic()
        made = connecting(line, 1, 2).connect(b"")
        took_s = time.monotonic() - began
        for stranger in strangers:
            stranger.close()
        return took_s, made

    (sockets, _, _), (took_s, (others, _, _)) = together(lambda: connecting(line, 0, 2).connect(b""), late)
    assert took_s < 8.0, "each of them was waited for"
    os.close(sockets[1])
    os.close(others[0])


def test_a_leader_that_goes_before_it_has_greeted_is_tried_again_until_its_death_is_known() -> None:
    line = Line()
    mine = connecting(line, 1, 2, elastic=True)
    before = open_descriptors()
    listener = listen_tcp(["127.0.0.1"])
    line.store_set(1, "link of all", links.msgspec.msgpack.encode([b"127.0.0.1:%d" % listener.getsockname()[1], b""]))

    def dying() -> int:
        times = 0
        while times < 3:
            channel = Channel(listener.accept()[0], KEY, "hub")
            channel.prove(timeout_s=DEADLINE_S)
            channel.close()
            times += 1
        mine._backend.died = Died(1, 0, "killed by SIGKILL")
        listener.close()
        return times

    error, times = together(lambda: mine.connect(b""), dying)
    assert times == 3 and isinstance(error, PeerLostError) and "SIGKILL" in str(error), error
    assert open_descriptors() == before


@pytest.mark.parametrize("what", ["link", "linked"])
def test_in_an_elastic_job_a_leader_that_does_not_come_is_given_up(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is retried then, with those who are left; and nothing stays open."""
    line = Line()
    before = open_descriptors()
    if what == "link":
        (error,) = together(lambda: connecting(line, 0, 2, elastic=True, host_timeout_s=0.2).connect(b""))
    else:
        collect = links._Connecting._collect

        def only_once(self: Any, what: str, mine: bytes) -> list[bytes]:
            if what == "linked" and self._mine == 1:
                raise RuntimeError("it went")
            return collect(self, what, mine)

        monkeypatch.setattr(links._Connecting, "_collect", only_once)
        error, _ = together(
            lambda: connecting(line, 0, 2, elastic=True, host_timeout_s=1.0).connect(b""),
            lambda: connecting(line, 1, 2, elastic=True, host_timeout_s=1.0).connect(b""),
        )
    assert isinstance(error, PeerLostError), error
    assert [said.rank for said in line.said if isinstance(said, GivenUp)] == [1]
    assert open_descriptors() == before


def test_what_was_opened_for_links_that_fail_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []

    class Opened:
        address, handle = b"here", 1

        def __init__(self, address: str) -> None: ...

        def close(self) -> None:
            closed.append(self)

    def fails(self: Any, fabric: bytes) -> None:
        assert fabric == b"here"
        raise HoraError("no way")

    monkeypatch.setattr(links, "Fabric", Opened)
    monkeypatch.setattr(links._Connecting, "connect", fails)
    with pytest.raises(HoraError, match="no way"):
        links.start(meeting(Line(), 0, 2, transport="shm+ucx"))
    assert len(closed) == 1


def test_there_is_room_for_a_connection_to_each_of_many_hosts() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        room_for_descriptors(300)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (300, hard)
        room_for_descriptors(100)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (300, hard)
        room_for_descriptors(1 << 40)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard) or hard == resource.RLIM_INFINITY
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
