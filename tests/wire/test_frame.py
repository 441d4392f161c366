"""Frames: what is sent arrives, whole and in order; whatever else comes in ends in a WireError and bounded memory."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hora.wire.frame import MAX_FRAME_BYTES, Channel, Codec, Endpoint, WireClosed, WireError, WireTimeout

SECRET = b"s" * 32


def drain(codec: Codec) -> bytes:
    return b"".join(bytes(chunk.data) for chunk in codec.outgoing())


def introduced(secret: bytes = SECRET, max_bytes: int = MAX_FRAME_BYTES) -> tuple[Codec, Codec]:
    hub, worker = Codec(secret, "hub", max_bytes=max_bytes), Codec(secret, "worker", max_bytes=max_bytes)
    for _ in range(2):
        hub.receive(drain(worker))
        worker.receive(drain(hub))
    assert hub.proven and worker.proven
    return hub, worker


@given(st.lists(st.binary(max_size=300), max_size=8), st.lists(st.integers(1, 64), min_size=1, max_size=20))
def test_payloads_arrive_whole_and_in_order_however_the_bytes_are_cut(payloads: list[bytes], cuts: list[int]) -> None:
    hub, worker = introduced()
    for payload in payloads:
        worker.send(payload)
    stream, received, at = drain(worker), [], 0
    while at < len(stream):
        cut = cuts[at % len(cuts)]
        received += hub.receive(stream[at : at + cut])
        at += cut
    assert received == payloads
    assert not hub.partial


@given(st.binary(min_size=1, max_size=200), st.data())
def test_any_changed_bit_is_noticed(payload: bytes, data: st.DataObject) -> None:
    hub, worker = introduced()
    worker.send(payload)
    frame = bytearray(drain(worker))
    bit = data.draw(st.integers(0, len(frame) * 8 - 1))
    frame[bit // 8] ^= 1 << (bit % 8)
    try:
        assert hub.receive(bytes(frame)) == []  # the length grew: still waiting, for bytes that will not authenticate
        hub.receive(bytes(MAX_FRAME_BYTES))
        pytest.fail("the changed frame was accepted")
    except WireError:
        pass


@given(st.binary(min_size=1, max_size=400))
def test_garbage_is_refused_before_the_greeting(garbage: bytes) -> None:
    hub = Codec(SECRET, "hub")
    try:
        assert hub.receive(garbage) == []
    except WireError:
        return
    assert b"HORA1w".startswith(garbage[:6])


@given(st.binary(min_size=45, max_size=400))
def test_garbage_is_refused_after_the_greeting(garbage: bytes) -> None:
    hub, worker = Codec(SECRET, "hub"), Codec(SECRET, "worker")
    hub.receive(drain(worker))
    with pytest.raises(WireError):
        hub.receive(garbage)


def test_a_wrong_key_is_named_as_such() -> None:
    hub, worker = Codec(SECRET, "hub"), Codec(b"x" * 32, "worker")
    hub.receive(drain(worker))
    worker.receive(drain(hub)[:38])
    with pytest.raises(WireError, match="another key"):
        hub.receive(drain(worker))


def test_a_replayed_frame_is_refused() -> None:
    hub, worker = introduced()
    worker.send(b"pay")
    frame = drain(worker)
    assert hub.receive(frame) == [b"pay"]
    with pytest.raises(WireError, match="replayed"):
        hub.receive(frame)


def test_frames_in_another_order_are_refused() -> None:
    hub, worker = introduced()
    worker.send(b"a")
    first = drain(worker)
    worker.send(b"b")
    with pytest.raises(WireError):
        hub.receive(drain(worker) + first)


def test_a_recorded_conversation_cannot_be_played_to_another_connection() -> None:
    worker = Codec(SECRET, "worker")
    record = drain(worker)
    hub = Codec(SECRET, "hub")
    hub.receive(record)
    worker.receive(drain(hub))
    worker.send(b"order")
    record += drain(worker)
    with pytest.raises(WireError):
        Codec(SECRET, "hub").receive(record)


def test_a_frame_cannot_be_reflected_to_its_sender() -> None:
    _, worker = introduced()
    worker.send(b"a")
    with pytest.raises(WireError):
        worker.receive(drain(worker))


def test_two_of_the_same_role_do_not_talk() -> None:
    with pytest.raises(WireError, match="does not speak"):
        Codec(SECRET, "hub").receive(drain(Codec(SECRET, "hub")))


@pytest.mark.parametrize("length", [MAX_FRAME_BYTES + 1, 2**31, 2**32 - 1])
def test_a_huge_length_is_refused_before_anything_is_buffered(length: int) -> None:
    hub, _ = introduced()
    with pytest.raises(WireError, match="limit"):
        hub.receive(length.to_bytes(4, "big"))


def test_nobody_unproven_makes_us_wait_for_a_frame() -> None:
    hub, worker = Codec(SECRET, "hub"), Codec(SECRET, "worker")
    hub.receive(drain(worker))
    with pytest.raises(WireError, match="limit is 5"):
        hub.receive((1000).to_bytes(4, "big"))


def test_a_payload_over_the_limit_is_refused_where_it_is_sent() -> None:
    _, worker = introduced(max_bytes=100)
    with pytest.raises(WireError, match="101 bytes"):
        worker.send(b"x" * 101)


# ---- over sockets ----


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    a, b = socket.socketpair()
    hub, worker = Channel(a, SECRET, "hub"), Channel(b, SECRET, "worker")
    yield hub, worker
    hub.close()
    worker.close()


def shake(hub: Channel, worker: Channel) -> None:
    thread = threading.Thread(target=lambda: hub.send(hub.receive(timeout_s=5), timeout_s=5))
    thread.start()
    worker.send(b"hi", timeout_s=5)
    assert worker.receive(timeout_s=5) == b"hi"
    thread.join(5)


def test_channels_talk_both_ways(pair: tuple[Channel, Channel]) -> None:
    hub, worker = pair
    shake(hub, worker)
    big = os.urandom(3_000_000)
    sender = threading.Thread(target=lambda: hub.send(big, timeout_s=10))
    sender.start()
    assert worker.receive(timeout_s=10) == big
    sender.join(5)


def test_receive_keeps_its_deadline(pair: tuple[Channel, Channel]) -> None:
    began = time.monotonic()
    with pytest.raises(WireTimeout, match="sent nothing"):
        pair[0].receive(timeout_s=0.1)
    assert time.monotonic() - began < 2


def test_send_keeps_its_deadline_when_the_peer_does_not_read(pair: tuple[Channel, Channel]) -> None:
    hub, worker = pair
    shake(hub, worker)
    with pytest.raises(WireTimeout, match="read nothing"):
        hub.send(bytes(8_000_000), timeout_s=0.1)


def test_the_end_of_the_peer_is_told(pair: tuple[Channel, Channel]) -> None:
    hub, worker = pair
    shake(hub, worker)
    worker.close()
    with pytest.raises(WireClosed):
        hub.receive(timeout_s=5)
    with pytest.raises(WireClosed):
        for _ in range(100):
            hub.send(b"anyone?", timeout_s=1)
    with pytest.raises(WireClosed):
        worker.receive(timeout_s=1)


def test_closing_wakes_a_blocked_receive(pair: tuple[Channel, Channel]) -> None:
    hub, worker = pair
    shake(hub, worker)
    ended: list[BaseException] = []

    def receive() -> None:
        try:
            worker.receive(timeout_s=30)
        except WireError as error:
            ended.append(error)

    thread = threading.Thread(target=receive)
    thread.start()
    worker.close()
    thread.join(5)
    assert not thread.is_alive() and ended


def test_descriptors_travel_with_their_message(pair: tuple[Channel, Channel]) -> None:
    hub, worker = pair
    shake(hub, worker)
    memory = os.memfd_create("test")
    os.write(memory, b"shared")
    hub.send(b"plain", timeout_s=5)
    hub.send(b"with one", timeout_s=5, descriptors=(memory,))
    os.close(memory)
    assert worker.receive(timeout_s=5) == b"plain"
    assert worker.receive(timeout_s=5) == b"with one"
    passed = worker.take_descriptor()
    assert os.pread(passed, 10, 0) == b"shared"
    assert not os.get_inheritable(passed)
    os.close(passed)
    with pytest.raises(WireError, match="did not come"):
        worker.take_descriptor()


def test_a_slow_peer_is_dated_and_a_fast_one_is_not() -> None:
    a, b = socket.socketpair()
    endpoint = Endpoint(a, SECRET, "hub")
    endpoint.write()
    assert endpoint.partial_since is None
    b.send(b"HORA1w" + bytes(10))
    endpoint.read()
    since = endpoint.partial_since
    assert since is not None
    b.send(bytes(5))
    endpoint.read()
    assert endpoint.partial_since == since  # dripping bytes does not buy time
    endpoint.close()
    b.close()


def test_whoever_knows_the_secret_has_the_same_key_for_each_use() -> None:
    hub, worker = introduced()
    stranger, _ = introduced(b"t" * 32)
    assert hub.key_for("generation 1") == worker.key_for("generation 1")
    assert len({codec.key_for(use) for codec in (hub, stranger) for use in ("generation 1", "generation 2")}) == 4
    assert SECRET not in hub.key_for("generation 1") and len(hub.key_for("generation 1")) == 32
