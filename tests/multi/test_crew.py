"""The harness itself: it must notice what it is there to notice."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest
from tests.multi.crew import Member


@pytest.fixture
def line() -> Iterator[tuple[Member, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Member(ours), theirs


def soon() -> float:
    return time.monotonic() + 5


def test_messages_both_ways(line: tuple[Member, socket.socket]) -> None:
    member, worker = line
    member.tell(body="x", timeout_s=1.5)
    assert worker.recv(100) == b'{"body": "x", "timeout_s": 1.5}\n'
    worker.sendall(b'{"rank": 1}\n{"rank"')
    assert member.hear(soon()) == {"rank": 1}
    worker.sendall(b": 2}\n")
    assert member.hear(soon()) == {"rank": 2}


def test_a_worker_that_died(line: tuple[Member, socket.socket]) -> None:
    member, worker = line
    worker.close()
    assert member.hear(soon()) is None


def test_a_worker_that_hangs(line: tuple[Member, socket.socket]) -> None:
    member, _ = line
    with pytest.raises(TimeoutError):
        member.hear(time.monotonic() + 0.01)
