"""The message backend: in one process over a fake mover, and in real processes over Gloo."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.engine.simulate import buffer_of
from tests.engine.talk_crew import run_crew
from tests.prompt import PROMPT_S
from tests.transport.fake import Exchange, FakeMover

from hora.config.settings import Settings
from hora.engine.coordinator import look_every_s
from hora.engine.hub import Hub
from hora.engine.hub_connection import HubConnection
from hora.engine.meet import Meeting
from hora.engine.message_backend import MessageBackend
from hora.engine.request import Request, TensorSpec
from hora.errors import DuplicateNameError, HorovodInternalError, PeerLostError, ShutDownError
from hora.types import Kind, ReduceOp, Reduction
from hora.wire.frame import SECRET_BYTES, Channel
from hora.wire.messages import Hello, Peer, Welcome

Array = np.ndarray[Any, Any]


class World:
    """``size`` backends in this process."""

    def __init__(self, size: int, longest_wait_s: float = 10.0) -> None:
        self.size, self.hub, self.exchange = size, Hub(size, host="here"), Exchange()
        lines = []
        for rank in range(size):
            ours, theirs = socket.socketpair()
            self.hub.add_worker(rank, ours)
            theirs.settimeout(5)
            lines.append(HubConnection(Channel(theirs, theirs.recv(SECRET_BYTES, socket.MSG_WAITALL), "worker")))
        self.lines = lines
        settings = Settings(transport="gloo")

        def begin(rank: int) -> MessageBackend:
            hello = Hello(0, rank, size, os.getpid(), "here", tuple(range(size)), settings)
            greeting = lines[rank].greet(hello, 10)
            assert greeting is not None and isinstance(greeting.message, Welcome)
            peers = greeting.message.peers
            meeting = Meeting(0, rank, peers, "gloo", settings, lines[rank], -1, -1)
            return MessageBackend(meeting, FakeMover(self.exchange, rank, longest_wait_s))

        self.backends = self.each(begin)

    def each(self, body: Callable[[int], Any]) -> list[Any]:
        """Run a body for every rank at once, each in a thread; what it raises is its result."""
        results: list[Any] = [None] * self.size

        def run(rank: int) -> None:
            try:
                results[rank] = body(rank)
            except Exception as error:
                results[rank] = error

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert not any(thread.is_alive() for thread in threads), "a rank hangs"
        return results

    def allreduce(self, rank: int, name: str, array: Array, **fields: Any) -> Any:
        buffer = buffer_of(array)
        request = Request(
            Kind.ALLREDUCE,
            f"allreduce.{name}",
            (TensorSpec(buffer.dtype, buffer.shape),),
            tuple(range(self.size)),
            **fields,
        )
        return self.backends[rank].prepare(request).start([buffer], [buffer])

    def close(self) -> None:
        for backend in self.backends:
            backend.close()
        for line in self.lines:
            line.close()
        self.hub.close()


@pytest.fixture
def world() -> Iterator[World]:
    world = World(3)
    yield world
    world.close()


def test_sums_in_any_order(world: World) -> None:
    def body(rank: int) -> float:
        arrays = {name: np.full(4, rank + 1.0) for name in ("abc" if rank else "cba")}
        tickets = {name: world.allreduce(rank, name, array) for name, array in arrays.items()}
        for ticket in tickets.values():
            ticket.wait()
        assert all(ticket.done() for ticket in tickets.values())
        return float(sum(array.sum() for array in arrays.values()))

    assert world.each(body) == [3 * 4 * 6.0] * 3


def test_without_a_wait_it_is_announced_within_the_cycle(world: World) -> None:
    tickets = [world.allreduce(rank, "x", np.ones(2)) for rank in range(3)]
    deadline = time.monotonic() + 5
    while not all(ticket.done() for ticket in tickets) and time.monotonic() < deadline:
        threading.Event().wait(0.005)
    assert all(ticket.done() for ticket in tickets)


def test_a_name_in_flight_is_refused(world: World) -> None:
    world.allreduce(0, "x", np.ones(2))
    with pytest.raises(DuplicateNameError):
        world.allreduce(0, "x", np.ones(2))


def test_a_death_ends_every_wait_at_once(world: World) -> None:
    def body(rank: int) -> Any:
        if rank == 2:
            world.lines[2].close()
            world.hub.worker_exited(2, "signal 11 (SIGSEGV)")
            return None
        began = time.monotonic()
        with pytest.raises(PeerLostError) as caught:
            world.allreduce(rank, "x", np.ones(2)).wait()
        assert time.monotonic() - began < PROMPT_S
        return caught.value

    first, second, _ = world.each(body)
    for error in (first, second):
        assert (error.rank, error.host, error.pid, error.status) == (2, "here", os.getpid(), "signal 11 (SIGSEGV)")
        assert "allreduce.x" in str(error)
    with pytest.raises(PeerLostError):
        world.allreduce(0, "y", np.ones(2))
    assert isinstance(world.each(lambda rank: world.backends[rank].join(False))[0], PeerLostError)


def test_the_last_words_of_the_dead_are_passed_on(world: World) -> None:
    world.backends[2].say("ValueError: no such file")
    world.lines[2].close()
    with pytest.raises(PeerLostError, match="The last it said:\nValueError: no such file"):
        world.allreduce(0, "x", np.ones(2)).wait()


def test_events_tell_an_operations_life_in_order(world: World) -> None:
    world.backends[0].trace(True)
    world.each(lambda rank: world.allreduce(rank, "x", np.ones(2)).wait())
    assert not world.backends[0].waiting()
    failed = world.each(lambda rank: world.allreduce(rank, "y", np.ones(2 + rank)).wait())
    assert all(isinstance(error, HorovodInternalError) for error in failed)
    events = world.backends[0].events()
    told = [(event.request.name, event.what.name, event.detail) for event in events]
    assert told == [
        ("allreduce.x", "SUBMITTED", 0),
        ("allreduce.x", "ARRIVED", 0),
        ("allreduce.x", "AGREED", 0),
        ("allreduce.x", "BEGIN", 1),
        ("allreduce.x", "END", 0),
        ("allreduce.y", "SUBMITTED", 0),
        ("allreduce.y", "END", 1),
    ]
    assert [event.time_ns for event in events] == sorted(event.time_ns for event in events)
    assert world.backends[0].events() == []
    world.backends[0].trace(False)
    world.each(lambda rank: world.allreduce(rank, "x", np.ones(2)).wait())
    assert world.backends[0].events() == []


def test_a_mover_that_fails_ends_the_generation_on_all_ranks() -> None:
    world = World(2, longest_wait_s=0.2)
    try:
        world.backends[1]._mover.close()  # so that it fails, and rank 0 waits for it in vain
        first, second = world.each(lambda rank: world.allreduce(rank, "x", np.ones(2)).wait())
        assert isinstance(first, HorovodInternalError) and isinstance(second, HorovodInternalError)
        with pytest.raises(HorovodInternalError):
            world.allreduce(0, "y", np.ones(2))
    finally:
        world.close()


def test_the_end_of_the_hub_ends_every_wait(world: World) -> None:
    ticket = world.allreduce(0, "x", np.ones(2))
    world.hub.close()
    with pytest.raises(PeerLostError, match="launcher is gone"):
        ticket.wait()


def test_what_is_too_large_to_be_announced_is_not_the_hubs_end(world: World) -> None:
    ticket = world.allreduce(1, "other", np.ones(2))
    with pytest.raises(HorovodInternalError, match=r"Submit of \d+ bytes") as caught:
        world.allreduce(0, "x" * (17 << 20), np.ones(2)).wait()
    assert not isinstance(caught.value, PeerLostError)
    with pytest.raises(PeerLostError, match=r"rank 0 .* could not say what it submitted") as lost:
        ticket.wait()
    assert lost.value.rank == 0


def test_join_and_averages(world: World) -> None:
    def body(rank: int) -> Any:
        array = np.full(2, rank + 1.0)
        if rank < 2:
            world.allreduce(rank, "x", array, how=Reduction(ReduceOp.AVERAGE)).wait()
        return world.backends[rank].join(average_active=True), array[0]

    results = world.each(body)
    assert [value for _, value in results] == [1.5, 1.5, 3.0]
    assert len({last for last, _ in results}) == 1


def test_leaving_in_good_order(world: World) -> None:
    def body(rank: int) -> Any:
        backend = world.backends[rank]
        world.allreduce(rank, "x", np.ones(2)).wait()
        if rank == 2:
            backend.leave()
            return None
        return world.allreduce(rank, "y", np.ones(2)).wait()

    first, second, _ = world.each(body)
    assert isinstance(first, ShutDownError) and isinstance(second, ShutDownError)
    assert "shut Hora down" in str(first)


def test_who_leaves_because_of_an_exception_is_quoted(world: World) -> None:
    ticket = world.allreduce(0, "x", np.ones(2))
    world.backends[1].say("KeyError: 'label'")
    world.backends[1].leave()
    with pytest.raises(ShutDownError, match="The last it said:\nKeyError: 'label'"):
        ticket.wait()


def test_closing_ends_what_this_rank_waits_for(world: World) -> None:
    ticket = world.allreduce(0, "x", np.ones(2))
    world.backends[0].close()
    world.backends[0].close()
    with pytest.raises(ShutDownError):
        ticket.wait()


def test_a_snapshot_tells_who_waits_for_what_and_a_verdict_ends_it(world: World) -> None:
    backend = world.backends[0]
    caught: list[Exception] = []

    def wait() -> None:
        try:
            world.allreduce(0, "x", np.ones(2), line="a.py:7").wait()
        except HorovodInternalError as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    deadline = time.monotonic() + 5
    snapshot = backend.snapshot()
    while not (snapshot.pending and snapshot.ranks[0].blocked) and time.monotonic() < deadline:
        snapshot = backend.snapshot()
    assert snapshot.ranks[0].waiting_on == (("allreduce.x", (0, 1, 2)),)
    assert [rank.blocked for rank in snapshot.ranks] == [True, False, False]
    (pending,) = snapshot.pending
    assert pending.missing == (1, 2) and pending.requests[0].line == "a.py:7"
    assert backend.snapshot().progress == snapshot.progress
    assert "test_a_snapshot_tells" in backend.python_stack(1, 5.0)
    backend.fail(pending, "deadlock", "nobody moves")
    thread.join(5)
    assert [type(error).__name__ for error in caught] == ["DeadlockError"]
    assert backend.snapshot().progress != snapshot.progress


# ---- real processes, over Gloo ----


def test_every_type_and_operation_over_gloo_in_several_generations() -> None:
    reports = run_crew("arithmetic,collectives,errors,joins,steps", 3)
    assert [report["code"] for report in reports] == [0, 0, 0], reports
    for rank, report in enumerate(reports):
        assert report["wrong"] == 0 and report["checked"] == 150
        assert report["allgather even"] == [0, 0, 1, 1, 2, 2]
        assert report["allgather uneven"] == [0, 1, 1, 2, 2, 2] and report["received uneven"] == [[6, 12, 18]]
        assert report["allgather skewed"] == [1] * 20 and report["received skewed"] == [[0, 30000, 0]]
        assert report["broadcast"] == [0, 2, 4, 6]
        assert report["alltoall"] == [
            100 * sender + [[], [0], [1, 2]][rank][i] for sender in range(3) for i in range(rank)
        ]
        assert report["reducescatter"] == [[0, 2, 4], [6, 8], [10, 12]][rank]
        assert report["group"] == [3, 3]
        assert report.get("adasum", rank == 1)
        assert report["good"] == [3, 3, 3]
        assert report["sums"] == [2, 1][:rank] and report["after"] == 3
        assert report["texts"] == reports[0]["texts"] and len(report["texts"]) == 2
        assert report["last"] == reports[0]["last"]
    assert "rank 1      (4,)" in reports[0]["texts"][0]


def test_a_kill_over_gloo_is_named_in_time_and_nobody_aborts() -> None:
    first, second, killed = run_crew("death", 3)
    assert killed["code"] == -9
    for report in (first, second):
        assert report["code"] == 0, report
        assert (report["rank"], report["status"]) == (2, "signal 9")
        assert report["took_s"] < PROMPT_S and "allreduce.big" in report["text"]


def test_stacks_and_verdicts_between_processes() -> None:
    first, second = run_crew("looking", 2)
    assert (first["code"], second["code"]) == (0, 0), (first, second)
    assert (first["name"], first["missing"], first["in stack"]) == ("allreduce.lonely", [1], True)
    assert first["text"] == "StallError: too slow"


def test_a_process_that_was_given_up_while_it_was_stopped_ends_when_it_goes_on() -> None:
    first, second = run_crew("given_up", 2)
    assert (first["code"], second["code"]) == (0, 0), (first, second)
    assert first["text"].startswith("PeerLostError: rank 1 ")
    assert second["text"].startswith("ShutDownError: 'allreduce.after' cannot be done: "), second
    assert "has not answered for 600 s" in second["text"] or "generation 0" in second["text"]


def test_a_snapshot_is_waited_for_longer_than_a_hub_may_put_it_off() -> None:
    waited = list[float]()

    class Slow:
        def snapshot(self, generation: int, timeout_s: float) -> None:
            waited.append(timeout_s)

    backend = MessageBackend.__new__(MessageBackend)
    peers = tuple(Peer(rank, rank, 1, "here") for rank in range(512))
    backend._meeting = Meeting(0, 0, peers, "gloo", Settings(), None, -1, -1)  # type: ignore[arg-type]
    backend._line, backend._generation = Slow(), 0  # type: ignore[assignment]
    assert backend.snapshot().progress == -1  # nobody answered
    assert waited[0] > 1 + look_every_s(512)
