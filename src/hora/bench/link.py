"""The link between hosts: what it carries, and how long a training step must take because of it.

The rate is measured with plain sockets, each host sending to the next while it receives from the one before, so both
directions are busy, as they are in an allreduce. It is what a program gets, without headers.

The floor of a step follows from it. An allreduce between n hosts brings 2 (n - 1) / n of the gradients' bytes over each
host's link in each direction, however it is done, unless hosts round what they send. None can leave before it is there:
from the moment a gradient is ready, it and all that become ready later still have to travel. The
optimizer waits for the last. The floor says nothing of the processor's time that the network takes.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from hora.engine import session
from hora.wire.listen import listen_tcp

__all__ = ["Profile", "floor_s", "rate"]

BURST_S, BURSTS = 0.25, 3
PIECE_BYTES = 1 << 18
TOKEN_BYTES = 16
LONGEST_WAIT_S = 20.0
_COUNT = struct.Struct("<Qd")


class Profile(NamedTuple):
    """A step of one worker without communication: (when, bytes) of its gradients in the order of their coming, in
    seconds from its beginning, and how long it takes from the last one to its end."""

    ready: tuple[tuple[float, int], ...]
    rest_s: float


def floor_s(profile: Profile, hosts: int, bytes_per_s: float, wire: float = 1.0) -> float:
    """The least that such a step can take between ``hosts``; ``wire`` is the share of a gradient's bytes that travel.

    >>> one = Profile(ready=((0.1, 500), (0.2, 500)), rest_s=0.05)
    >>> floor_s(one, 2, 1000.0), floor_s(one, 2, 10_000.0)
    (1.15, 0.3)
    """
    left, latest = sum(count for _, count in profile.ready), 0.0
    for when, count in profile.ready:
        latest = max(latest, when + wire * left * 2 * (hosts - 1) / hosts / bytes_per_s)
        left -= count
    return round(latest + profile.rest_s, 9)


def rate() -> float:
    """Bytes a second that each host's link carries in both directions at once; called by all ranks, equal on all."""
    engine = session.engine()
    leaders = list({peer.host: rank for rank, peer in reversed(list(enumerate(engine.peers)))}.values())
    leaders.sort()
    return max(_burst(leaders, number) for number in range(BURSTS))


def _burst(leaders: Sequence[int], number: int) -> float:
    engine, rank = session.engine(), session.rank()
    if rank not in leaders:
        engine.exchange(f"bench.link.{number}.open", b"")
        return _slowest(engine.exchange(f"bench.link.{number}.done", b""))
    token = os.urandom(TOKEN_BYTES)  # nobody else's bytes are counted; it came over authenticated lines
    address = engine.peers[rank].address
    with listen_tcp([address] if address else []) as listener:
        mine = f"{address}\n{listener.getsockname()[1]}".encode() + b"\n" + token
        told = engine.exchange(f"bench.link.{number}.open", mine)
        host, port, theirs = told[leaders[(leaders.index(rank) + 1) % len(leaders)]].split(b"\n", 2)
        received: list[tuple[int, float]] = []
        taker = threading.Thread(target=_take, args=(listener, token, received), daemon=True)
        taker.start()
        _send(host.decode(), int(port), theirs)
        taker.join(LONGEST_WAIT_S)
    count, seconds = received[0] if received else (0, 1.0)
    return _slowest(engine.exchange(f"bench.link.{number}.done", _COUNT.pack(count, seconds)))


def _slowest(told: Sequence[bytes]) -> float:
    measured = [_COUNT.unpack(words) for words in told if words]
    return float(min(count / seconds for count, seconds in measured))


def _send(host: str, port: int, token: bytes) -> None:
    piece = bytes(PIECE_BYTES)
    with socket.create_connection((host, port), LONGEST_WAIT_S) as sock:
        sock.sendall(token)
        end = time.perf_counter() + BURST_S
        while time.perf_counter() < end:
            sock.sendall(piece)


def _take(listener: socket.socket, token: bytes, received: list[tuple[int, float]]) -> None:
    listener.settimeout(LONGEST_WAIT_S)
    buffer = bytearray(PIECE_BYTES)
    while not received:
        sock, _ = listener.accept()
        with sock:
            sock.settimeout(LONGEST_WAIT_S)
            if sock.recv(TOKEN_BYTES, socket.MSG_WAITALL) != token:
                continue
            total, start = 0, time.perf_counter()
            while got := sock.recv_into(buffer):
                total += got
            received.append((total, time.perf_counter() - start))
