"""Reaching a listener by several addresses, of which some lead nowhere and some to others."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from hora.wire.addresses import join
from hora.wire.frame import Channel, WireError
from hora.wire.reach import Unreachable, reach

SECRET = b"k" * 32


@pytest.fixture
def hub() -> Iterator[str]:
    """Somebody who knows the secret, and echoes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            channel = Channel(sock, SECRET, "hub")
            with contextlib.suppress(WireError):
                channel.send(channel.receive(timeout_s=5), timeout_s=5)
            channel.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield join("127.0.0.1", listener.getsockname()[1])
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(5)


def test_the_first_that_answers_is_kept(hub: str) -> None:
    silent = socket.create_server(("127.0.0.1", 0))  # accepts, and says nothing
    with silent:
        channel = reach(["127.0.0.1:9", "no.such.host.invalid:1", hub], SECRET, timeout_s=10)
        channel.send(b"hello", timeout_s=5)
        assert channel.receive(timeout_s=5) == b"hello"
        channel.close()


def test_an_address_without_an_answer_does_not_keep_it_from_the_others(hub: str) -> None:
    began = time.monotonic()
    channel = reach(["192.0.2.1:9", hub], SECRET, timeout_s=20)  # a network that is nobody's
    assert time.monotonic() - began < 10
    channel.close()


def test_another_secret_is_not_enough(hub: str) -> None:
    with pytest.raises(Unreachable) as caught:
        reach([hub], b"x" * 32, timeout_s=5)
    assert "not this job's" in caught.value.failures[hub]


def test_all_failures_are_told() -> None:
    with pytest.raises(Unreachable, match=r"127.0.0.1:9: connection refused; not-an-address: "):
        reach(["127.0.0.1:9", "not-an-address"], SECRET, timeout_s=5)


def test_who_is_hung_up_on_tries_again(hub: str) -> None:
    """A hub at which strangers crowd hangs up on some; another address that never answers must not delay that."""
    front = socket.create_server(("127.0.0.1", 0))
    hung_up = []

    def serve() -> None:
        while len(hung_up) < 3:
            front.accept()[0].close()
            hung_up.append(time.monotonic())
        sock, _ = front.accept()
        channel = Channel(sock, SECRET, "hub")
        with contextlib.suppress(WireError):
            channel.send(channel.receive(timeout_s=5), timeout_s=5)
        channel.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with front:
        where = join("127.0.0.1", front.getsockname()[1])
        channel = reach(["192.0.2.1:9", where], SECRET, timeout_s=20)
        channel.send(b"hello", timeout_s=5)
        assert channel.receive(timeout_s=5) == b"hello" and len(hung_up) == 3
        channel.close()
        thread.join(5)


def test_who_is_always_hung_up_on_says_so_in_the_end() -> None:
    front = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                front.accept()[0].close()

    threading.Thread(target=serve, daemon=True).start()
    where = join("127.0.0.1", front.getsockname()[1])
    try:
        with pytest.raises(Unreachable) as caught:
            reach([where], SECRET, timeout_s=0.5)
        assert "not this job's" in caught.value.failures[where]
    finally:
        front.shutdown(socket.SHUT_RDWR)
        front.close()
