"""The hub over real sockets: gathering, deaths, refusals, and guests that behave badly."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.prompt import PROMPT_S

from hora.config.settings import Settings
from hora.engine import hub as hub_module
from hora.engine.hub import Hub
from hora.engine.line import Greeting, Line
from hora.wire.door import listen_tcp
from hora.wire.frame import SECRET_BYTES, Channel, WireTimeout
from hora.wire.messages import AnyMessage, Bye, Died, Hello, Join, Left, Refused, Submit, Welcome, encode
from hora.wire.reach import reach

GLOO = Settings(transport="gloo", start_timeout_s=0.2)


class Worker:
    """A worker's line, without a process of its own."""

    def __init__(
        self, rank: int, sock: socket.socket | None, host: str = "here", channel: Channel | None = None
    ) -> None:
        self.rank, self.host, self.heard = rank, host, []  # type: ignore[var-annotated]
        self.lost: list[str] = []
        self.news = threading.Condition()
        if channel is None:
            assert sock is not None
            channel = Channel(sock, take_secret(sock), "worker")
        self.line = Line(channel)

    def greet(self, generation: int = 0, members: tuple[int, ...] = (0, 1), size: int = 2, **more: Any) -> Greeting:
        more.setdefault("settings", GLOO)
        pid = more.pop("pid", 100 + self.rank)
        greeting = self.line.greet(Hello(generation, self.rank, size, pid, self.host, members, **more), timeout_s=10)
        assert greeting is not None
        if isinstance(greeting.message, Welcome):
            self.line.subscribe(self.hear, self.lost.append)
        return greeting

    def hear(self, message: AnyMessage) -> None:
        with self.news:
            self.heard.append(message)
            self.news.notify_all()

    def expect(self, kind: type[Any], timeout_s: float = PROMPT_S) -> Any:
        with self.news:
            assert self.news.wait_for(lambda: any(isinstance(m, kind) for m in self.heard), timeout_s), self.heard
            return next(m for m in self.heard if isinstance(m, kind))


def take_secret(sock: socket.socket) -> bytes:
    sock.settimeout(5)
    return sock.recv(SECRET_BYTES, socket.MSG_WAITALL)


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub(2, host="here")
    yield hub
    hub.close()


@pytest.fixture
def workers(hub: Hub) -> Iterator[list[Worker]]:
    crew = []
    for rank in range(2):
        ours, theirs = socket.socketpair()
        hub.add_worker(rank, ours)
        crew.append(Worker(rank, theirs))
    yield crew
    for worker in crew:
        worker.line.close()


def together(*calls: Callable[[], Any]) -> list[Any]:
    results: list[Any] = [None] * len(calls)

    def run(i: int) -> None:
        results[i] = calls[i]()

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(15)
    assert not any(thread.is_alive() for thread in threads)
    return results


def meet(workers: list[Worker], generation: int = 0) -> list[Greeting]:
    return together(*(lambda w=worker: w.greet(generation) for worker in workers))


def test_all_are_welcomed_with_all_peers(workers: list[Worker]) -> None:
    first, second = (greeting.message for greeting in meet(workers))
    assert isinstance(first, Welcome) and isinstance(second, Welcome)
    assert (first.rank, second.rank) == (0, 1) and first.peers == second.peers
    assert [(peer.rank, peer.pid, peer.host) for peer in first.peers] == [(0, 100, "here"), (1, 101, "here")]
    assert first.transport == "gloo" and first.settings == GLOO


def test_the_missing_are_named(workers: list[Worker]) -> None:
    message = workers[1].greet(settings=Settings(transport="gloo", start_timeout_s=-1.8)).message
    assert isinstance(message, Refused) and message.kind == "stall" and "rank 0 did not call init()" in message.text


def test_a_worker_that_ends_before_init_is_named_at_once(hub: Hub, workers: list[Worker]) -> None:
    hub.worker_exited(0, "exit code 7")
    message = workers[1].greet(settings=Settings(start_timeout_s=60)).message
    assert isinstance(message, Refused) and message.kind == "lost" and "rank 0 ended (exit code 7)" in message.text


def test_a_reported_death_is_told_with_its_status(hub: Hub, workers: list[Worker]) -> None:
    meet(workers)
    workers[1].line.close()
    hub.worker_exited(1, "signal 9 (SIGKILL)")
    assert workers[0].expect(Died) == Died(0, 1, "signal 9 (SIGKILL)")


def test_a_death_is_noticed_without_any_report(workers: list[Worker]) -> None:
    meet(workers)
    workers[1].line.close()
    assert "connection closed" in workers[0].expect(Died).status


def test_a_reset_connection_waits_for_the_status_too(hub: Hub, workers: list[Worker]) -> None:
    """A worker killed with messages unread resets its connection instead of closing it."""
    workers[1].line.close()
    ours, theirs = socket.socketpair()
    hub.add_worker(1, ours)
    channel = Channel(theirs, take_secret(theirs), "worker")
    channel.send(encode(Hello(0, 1, 2, 101, "here", (0, 1), GLOO)), timeout_s=5)
    with pytest.raises(WireTimeout):
        channel.receive(timeout_s=0.1)  # only to complete the handshake
    workers[0].greet()
    workers[0].line.store_set(0, "k", b"v")
    assert workers[0].line.store_get(0, "k", 5.0) == b"v"  # so the welcome lies unread at the other end
    channel.close()
    hub.worker_exited(1, "signal 9 (SIGKILL)")
    assert workers[0].expect(Died).status == "signal 9 (SIGKILL)"


def test_a_goodbye_is_not_a_death(hub: Hub, workers: list[Worker]) -> None:
    meet(workers)
    workers[1].line.send(Bye(0))
    assert workers[0].expect(Left).rank == 1
    workers[1].line.close()
    hub.worker_exited(1, "exit code 0")
    workers[0].line.store_set(0, "k", b"v")
    assert workers[0].line.store_get(0, "k", 5.0) == b"v"  # served after the exit was
    assert not any(isinstance(message, Died) for message in workers[0].heard)


def test_generations_follow_each_other_and_old_ones_are_refused(workers: list[Worker]) -> None:
    meet(workers, 0)
    for worker in workers:
        worker.line.send(Bye(0))
    assert all(isinstance(greeting.message, Welcome) for greeting in meet(workers, 1))
    stale = workers[0].greet(0).message
    assert isinstance(stale, Refused) and stale.kind == "stale" and "already begun" in stale.text


def test_a_message_of_an_old_generation_is_refused_not_ignored(workers: list[Worker]) -> None:
    meet(workers, 3)
    workers[0].line._generation = 2  # as a worker that was stopped through a change of generation would be
    workers[0].line.send(Submit(2, ()))
    refused = workers[0].expect(Refused)
    assert refused.kind == "stale" and "generation 2" in refused.text


def test_a_part_of_the_world_is_a_world_with_its_own_ranks() -> None:
    hub = Hub(3, host="here")
    crew = []
    for rank in range(3):
        ours, theirs = socket.socketpair()
        hub.add_worker(rank, ours)
        crew.append(Worker(rank, theirs))
    greetings = together(lambda: crew[0].greet(members=(0, 2), size=3), lambda: crew[2].greet(members=(0, 2), size=3))
    assert [greeting.message.rank for greeting in greetings] == [0, 1]
    assert [peer.launched_rank for peer in greetings[0].message.peers] == [0, 2]
    for worker in crew:
        worker.line.close()
    hub.close()


def test_stacks_and_store_pass_between_workers(workers: list[Worker]) -> None:
    meet(workers)
    assert "test_stacks_and_store_pass_between_workers" in workers[0].line.python_stack(0, 1, 5.0)
    workers[1].line.store_set(0, "key", b"value")
    assert workers[0].line.store_get(0, "key", 5.0) == b"value"
    assert workers[0].line.store_get(0, "never", 0.05) is None


# ---- shared memory ----


class FakeSegment:
    def __init__(self) -> None:
        self.fd = os.memfd_create("hora-test")
        self.dead: list[tuple[int, str]] = []
        self.closed = False

    def mark_dead(self, rank: int, status: str) -> None:
        self.dead.append((rank, status))

    def close(self) -> None:
        if not self.closed:
            os.close(self.fd)
        self.closed = True


def test_shared_memory_is_handed_out_and_marked_on_a_death(
    hub: Hub, workers: list[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = FakeSegment()
    monkeypatch.setattr(hub_module, "_make_segment", lambda *_: (segment, ""))
    shared = Settings(transport="auto")
    greetings = together(*(lambda w=worker: w.greet(settings=shared) for worker in workers))
    descriptors = [greeting.descriptor for greeting in greetings]
    assert all(greeting.message.transport == "shm" for greeting in greetings) and min(descriptors) >= 0
    os.write(descriptors[0], b"hello")
    assert os.pread(descriptors[1], 5, 0) == b"hello"
    for descriptor in descriptors:
        os.close(descriptor)
    hub.worker_exited(1, "signal 9")
    workers[0].expect(Died)
    assert segment.dead == [(1, "signal 9")]
    workers[0].line.send(Bye(0))
    deadline = time.monotonic() + 5
    while not segment.closed and time.monotonic() < deadline:
        workers[0].line.store_get(0, "none", 0.01)
    assert segment.closed


def test_without_shared_memory_gloo_is_used_unless_shm_was_asked_for(
    workers: list[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "_make_segment", lambda *_: (None, "no core"))
    shm = Settings(transport="shm")
    refused = together(*(lambda w=worker: w.greet(0, settings=shm) for worker in workers))
    assert all(g.message.kind == "unfit" and "no core" in g.message.text for g in refused)
    auto = Settings(transport="auto")
    welcomed = together(*(lambda w=worker: w.greet(1, settings=auto) for worker in workers))
    assert all(greeting.message.transport == "gloo" for greeting in welcomed)


# ---- several hosts ----


def hosts_of(*hosts: str, settings: Settings = Settings(), core: bool = True) -> str:  # noqa: B008
    size = len(hosts)
    hellos = [Hello(0, r, size, 1, h, tuple(range(size)), settings, core=core or r > 0) for r, h in enumerate(hosts)]
    return hub_module._choose(hellos)[0]


def test_the_transport_follows_from_where_the_workers_are() -> None:
    assert hosts_of("a", "a") == "shm" and hosts_of("a", "b") == "gloo"
    assert hosts_of("a", "a", "b") == "shm+gloo" and hosts_of("a", "a", "b", core=False) == "gloo"
    assert hosts_of("a", "a", core=False) == "gloo"
    assert hosts_of("a", "a", "b", settings=Settings(hierarchical=False)) == "gloo"
    assert hosts_of("a", "a", "b", settings=Settings(transport="gloo")) == "gloo"
    assert hosts_of("a", "a", settings=Settings(transport="gloo")) == "gloo"
    mpi = Settings(transport="mpi")
    assert hosts_of("a", "a", "b", settings=mpi) == "shm+mpi" and hosts_of("a", "b", settings=mpi) == "mpi"
    assert hosts_of("a", "a", settings=mpi) == "mpi"


def test_shared_memory_on_several_hosts_is_refused() -> None:
    hub = Hub(2, host="here")
    crew = []
    for rank, host in enumerate("ab"):
        ours, theirs = socket.socketpair()
        hub.add_worker(rank, ours)
        crew.append(Worker(rank, theirs, host))
    refused = together(*(lambda w=worker: w.greet(settings=Settings(transport="shm")) for worker in crew))
    assert all(g.message.kind == "unfit" and "several hosts" in g.message.text for g in refused)
    for worker in crew:
        worker.line.close()
    hub.close()


def test_workers_come_by_tcp_if_they_know_the_secret_which_is_not_told() -> None:
    secret = bytes(range(32))
    hub = Hub(2, host="here", secret=secret)
    assert hub.secret == secret
    listener = listen_tcp()
    port = listener.getsockname()[1]
    hub.open_tcp(listener, expected=2)
    stranger = socket.create_connection(("127.0.0.1", port), 5)
    stranger.sendall(b"HORA1w" + bytes(32) + b"\0\0\0\5proof" + bytes(32))
    told = b""
    while more := _receive(stranger):
        told += more
    assert secret not in told
    stranger.close()
    crew = [Worker(r, None, host, reach([f"{a}:{port}"], secret, timeout_s=5))
            for r, (host, a) in enumerate([("here", "127.0.0.1"), ("there", "127.0.0.9")])]  # fmt: skip
    greetings = meet(crew)
    assert [g.message.transport for g in greetings] == ["gloo", "gloo"]
    assert [peer.address for peer in greetings[0].message.peers] == ["127.0.0.1", "127.0.0.1"]
    with pytest.raises(ConnectionRefusedError):  # all have come
        socket.create_connection(("127.0.0.1", port), 5)
    crew[1].line.close()
    assert crew[0].expect(Died).status.startswith("its connection from 127.0.0.1 closed")
    crew[0].line.close()
    hub.close()


def _receive(sock: socket.socket) -> bytes:
    sock.settimeout(5)
    try:
        return sock.recv(4096)
    except ConnectionResetError:
        return b""


def test_the_hubs_own_host_is_where_others_reach_it(hub: Hub) -> None:
    guests = {0: ("", ""), 1: ("10.0.0.2", "10.0.0.1"), 2: ("127.0.0.1", "127.0.0.1")}
    for rank, (theirs, ours) in guests.items():
        hub._guests[rank] = type("Guest", (), {"theirs": theirs, "ours": ours, "lost_at": 0.0, "pidfd": -1})()
    hellos = [Hello(0, rank, 3, 1, "x", (0, 1, 2), GLOO) for rank in guests]
    assert hub._addresses(hellos) == {0: "10.0.0.1", 1: "10.0.0.2", 2: "10.0.0.1"}
    hub._guests.clear()


# ---- guests that behave badly ----


def test_nonsense_costs_its_sender_the_connection_and_nobody_else(workers: list[Worker]) -> None:
    meet(workers)
    workers[1].line._channel.send(b"nonsense", timeout_s=5)
    assert "not a message" in workers[0].expect(Died).status


@pytest.mark.parametrize("payload", [encode(Submit(0, (b"junk",))), encode(Welcome(0, 0, (), "shm", GLOO))])
def test_wrong_messages_are_named(workers: list[Worker], payload: bytes) -> None:
    meet(workers)
    workers[1].line._channel.send(payload, timeout_s=5)
    assert "dropped by the hub" in workers[0].expect(Died).status


def test_joining_twice_is_a_breach(workers: list[Worker]) -> None:
    meet(workers)
    workers[1].line.send(Join(0, False))
    workers[1].line.send(Join(0, False))
    assert "joined twice" in workers[0].expect(Died).status


def test_strangers_without_the_secret_get_nowhere(hub: Hub, workers: list[Worker], tmp_path: Path) -> None:
    path = tmp_path / "private" / "hub"
    hub.listen(path)
    for noise in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096), b"HORA1w" + bytes(32) + b"\xff" * 64):
        stranger = socket.socket(socket.AF_UNIX)
        stranger.settimeout(5)
        stranger.connect(str(path))
        stranger.send(noise)
        received = b"start"
        while received:
            try:
                received = stranger.recv(4096)
            except ConnectionResetError:
                break
        stranger.close()
    assert all(isinstance(greeting.message, Welcome) for greeting in meet(workers))


def test_a_second_worker_of_the_same_rank_is_refused(hub: Hub, workers: list[Worker], tmp_path: Path) -> None:
    meet(workers)
    path = tmp_path / "private" / "hub"
    hub.listen(path)
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(path))
    twin = Worker(1, sock)
    message = twin.greet().message
    assert isinstance(message, Refused) and "same rank" in message.text
    twin.line.close()
    assert workers[0].line.store_get(0, "none", 0.05) is None and not workers[0].lost


def test_the_directory_must_be_private(hub: Hub, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(PermissionError, match="0700"):
        hub.listen(tmp_path / "hub")


def test_closing_the_hub_is_told_to_the_workers(caplog: pytest.LogCaptureFixture) -> None:
    hub = Hub(1, host="here")
    ours, theirs = socket.socketpair()
    hub.add_worker(0, ours)
    worker = Worker(0, theirs)
    with caplog.at_level(logging.WARNING):
        worker.greet(members=(0,), size=1)
        hub.close()
        hub.close()
    deadline = time.monotonic() + 5
    while not worker.lost and time.monotonic() < deadline:
        threading.Event().wait(0.01)
    assert worker.lost
    worker.line.close()
    assert not caplog.records
