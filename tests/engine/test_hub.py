"""The hub over real sockets: gathering, deaths, refusals, and guests that behave badly."""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.prompt import PROMPT_S

from hora.config.settings import Settings
from hora.engine import choice
from hora.engine.coordinator import Coordinator
from hora.engine.hub import Hub
from hora.engine.hub_connection import Greeting, HubConnection
from hora.engine.request import Request, TensorSpec
from hora.engine.snapshot import unpack
from hora.errors import EnvironmentUnfit
from hora.transport import shm
from hora.types import DType, Kind
from hora.wire.frame import MAX_FRAME_BYTES, SECRET_BYTES, Channel, WireTimeout
from hora.wire.listen import listen_tcp
from hora.wire.messages import (
    AnyMessage,
    Bye,
    Died,
    Farewell,
    GivenUp,
    Hello,
    HubDecisions,
    Join,
    Left,
    Refused,
    SnapshotAsk,
    SnapshotReply,
    StateAsk,
    StateReply,
    StoreGet,
    StoreSet,
    Submit,
    Welcome,
    decode,
    encode,
)
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
        self.line = HubConnection(channel)

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
    monkeypatch.setattr(choice, "make_segment", lambda *_: (segment, ""))
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
    monkeypatch.setattr(choice, "make_segment", lambda *_: (None, "no core"))
    shm = Settings(transport="shm")
    refused = together(*(lambda w=worker: w.greet(0, settings=shm) for worker in workers))
    assert all(g.message.kind == "unfit" and "no core" in g.message.text for g in refused)
    auto = Settings(transport="auto")
    welcomed = together(*(lambda w=worker: w.greet(1, settings=auto) for worker in workers))
    assert all(greeting.message.transport == "gloo" for greeting in welcomed)


@pytest.mark.parametrize("error", [EnvironmentUnfit("File too large. Perhaps ulimit -f."), OSError("no memory")])
def test_memory_that_cannot_be_had_is_made_up_for_by_gloo_and_everybody_knows_why(
    workers: list[Worker], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*_: Any) -> None:
        raise error

    monkeypatch.setattr(shm, "create_segment", refuse)
    monkeypatch.setattr(shm, "available", lambda: True)
    refused = together(*(lambda w=worker: w.greet(0, settings=Settings(transport="shm")) for worker in workers))
    assert all(g.message.kind == "unfit" and str(error) in g.message.text for g in refused)
    welcomed = together(*(lambda w=worker: w.greet(1, settings=Settings()) for worker in workers))
    assert all((g.message.transport, g.message.unshared) == ("gloo", str(error)) for g in welcomed)


# ---- several hosts ----


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


def test_idle_connections_do_not_keep_a_worker_out(hub: Hub) -> None:
    listener = listen_tcp(["127.0.0.1"])
    where = listener.getsockname()
    hub.open_tcp(listener)
    idle = [socket.create_connection(where, 5) for _ in range(30)]  # more than 2 * 2 + 16
    try:
        channel = reach([f"127.0.0.1:{where[1]}"], hub.secret, timeout_s=10)
        channel.close()
        assert _receive(idle[0])[:5] in (b"HORA1", b"") and _receive(idle[0]) == b""  # the oldest made room
    finally:
        for sock in idle:
            sock.close()


def test_too_few_file_descriptors_do_not_keep_the_hub_busy_or_a_worker_out(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = listen_tcp(["127.0.0.1"])
    where = listener.getsockname()
    hub.open_tcp(listener)
    with socket.create_connection(where, 5) as idle:
        assert _receive(idle)[:5] == b"HORA1"
        accept, tried = socket.socket.accept, []

        def once(self: socket.socket) -> Any:
            tried.append(self)
            if len(tried) == 1:
                raise OSError(errno.EMFILE, "Too many open files")
            return accept(self)

        monkeypatch.setattr(socket.socket, "accept", once)
        reach([f"127.0.0.1:{where[1]}"], hub.secret, timeout_s=10).close()
        assert _receive(idle) == b"" and len(tried) == 2  # the stranger made room


def test_a_worker_that_was_given_up_is_told_when_it_goes_on(workers: list[Worker]) -> None:
    meet(workers)
    workers[0].line.send(GivenUp(0, 1, "it has not answered for 600 s"))
    refused = workers[1].expect(Refused)
    assert refused.kind == "stale" and "it has not answered for 600 s" in refused.text
    workers[1].heard.clear()
    workers[1].line.send(Submit(0, ()))
    assert "it has not answered for 600 s" in workers[1].expect(Refused).text
    workers[0].line.send(Bye(0))
    workers[0].expect(Farewell)
    workers[1].heard.clear()
    workers[1].line.send(Join(0, False))  # the others are gone: nobody is left to remember why
    assert "generation 0" in workers[1].expect(Refused).text
    workers[1].line.send(Bye(0))
    workers[1].expect(Farewell)


# ---- nothing ends the hub ----


def ended_with_a_sentence(workers: list[Worker], *words: str) -> None:
    """Everybody was told why the generation is over, and the next one can begin."""
    for worker in workers:
        text = worker.expect(Refused).text
        assert all(word in text for word in words), text
        worker.line.send(Bye(0))
        worker.expect(Farewell)
    assert all(isinstance(greeting.message, Welcome) for greeting in meet(workers, 1))


def test_what_is_too_large_to_be_said_ends_the_generation_not_the_hub(workers: list[Worker]) -> None:
    """A value that just fits in the frame that brings it does not fit in the one that is to carry it on."""
    meet(workers)
    room = MAX_FRAME_BYTES - len(encode(StoreSet(0, "", b"")))
    workers[1].line.store_set(0, "", bytes(room - 4))
    workers[0].line.send(StoreGet(0, 2**40, ""))
    ended_with_a_sentence(workers, "StoreReply of", f"a frame holds {MAX_FRAME_BYTES}")


@pytest.mark.parametrize("part", ["flush", "tick"])
def test_an_error_in_a_generation_ends_it_and_not_the_hub(
    workers: list[Worker], part: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    meet(workers)

    def fail(*_: Any) -> None:
        raise RuntimeError("planted")

    with monkeypatch.context() as planted:
        planted.setattr(Coordinator, part, fail)
        workers[0].line.send(SnapshotAsk(0, 1))
        for worker in workers:
            worker.expect(Refused)
    ended_with_a_sentence(workers, "planted")
    assert sum("planted" in (record.exc_text or "") for record in caplog.records) == 1


def test_an_error_in_a_call_from_outside_does_not_end_the_hub(hub: Hub, workers: list[Worker]) -> None:
    hub._post(lambda: 1 // 0)  # type: ignore[arg-type,return-value]
    assert all(isinstance(greeting.message, Welcome) for greeting in meet(workers))


def test_256_workers_of_which_one_is_late_with_300_operations() -> None:
    """Every other one asks who is missing, and is told; then the late one comes, and all go on."""
    size, everyone = 256, tuple(range(256))
    hub, channels = Hub(size, host="here"), []
    try:
        for rank in everyone:
            ours, theirs = socket.socketpair()
            hub.add_worker(rank, ours)
            channels.append(Channel(theirs, take_secret(theirs), "worker"))
            channels[-1].send(encode(Hello(0, rank, size, 1, "here", everyone, GLOO)), timeout_s=5)
            channels[-1].prove(timeout_s=10)

        def hear(rank: int) -> AnyMessage:
            return decode(channels[rank].receive(timeout_s=30))

        assert all(isinstance(hear(rank), Welcome) for rank in everyone)
        segment = TensorSpec(DType.FLOAT32, (2048, 512, 1, 1))
        names = [f"allreduce.gradients.0.layer4.{i}.conv3.weight" for i in range(300)]
        requests = [Request(Kind.ALLREDUCE, name, (segment,), everyone, line="train.py:123") for name in names]
        step = encode(Submit(0, tuple(request.encode() for request in requests)))
        for channel in channels[:-1]:
            channel.send(step, timeout_s=30)
            channel.send(encode(SnapshotAsk(0, 1)), timeout_s=30)
        looks, told = Counter[int](), set[int]()
        deadline = time.monotonic() + 30
        while len(told) < size - 1 and time.monotonic() < deadline:
            for rank in select.select(channels, [], [], 5.0)[0] and everyone:
                while channels[rank].buffered or select.select([channels[rank]], [], [], 0)[0]:
                    match hear(rank):
                        case StateAsk(id=look):
                            looks[look] += 1
                            channels[rank].send(encode(StateReply(0, look, False, ())), timeout_s=30)
                        case SnapshotReply(snapshot=packed):
                            told.add(rank)
        assert told == set(everyone[:-1]) and set(looks.values()) == {size} and len(looks) < 10
        assert {p.missing for p in unpack(packed).pending} == {(255,)}
        channels[-1].send(step, timeout_s=30)
        for rank in everyone:
            plan = hear(rank)
            assert isinstance(plan, HubDecisions) and sum(len(batch.ops) for batch in plan.batches) == 300
    finally:
        for channel in channels:
            channel.close()
        hub.close()
