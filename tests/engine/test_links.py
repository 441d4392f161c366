"""The connections between hosts: what travels on them is right, proven, and belongs to its place in the stream."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from hora.config.settings import Settings
from hora.engine.request import Request, Segment
from hora.engine.table import TableBackend
from hora.errors import HoraError, PeerLostError
from hora.transport import shm
from hora.transport.base import Buffer, DType, Kind, ReduceOp
from hora.wire.messages import Peer

DEADLINE_S = 60.0
PEERS = tuple(Peer(rank, rank, os.getpid(), f"host{rank}") for rank in range(2))

Change = Callable[[int, bytes], bytes]  # the bytes that have passed before, and what comes


@contextlib.contextmanager
def hosts(change: Change = lambda passed, data: data) -> Iterator[list[TableBackend]]:
    """Two leaders of one worker each in this process; ``change`` sees what the second sends to the first."""
    near, far = socket.socketpair(), socket.socketpair()
    keys = os.urandom(32), os.urandom(32)
    backends = []
    for host in range(2):
        segment = shm.Segment(2, 1, 64 << 20, (0, 1), host)
        backends.append(TableBackend(segment.fd, host, PEERS, Settings(), 1))
        segment.close()
    ends = (near[0].detach(), far[1].detach())
    threads = [
        threading.Thread(target=forward, args=(near[1], far[0], lambda _, data: data), daemon=True),
        threading.Thread(target=forward, args=(far[0], near[1], change), daemon=True),
    ]
    for thread in threads:
        thread.start()
    for host, backend in enumerate(backends):
        sockets = (ctypes.c_int32 * 2)(*((-1, ends[0]) if host == 0 else (ends[1], -1)))
        mine = keys[0] + keys[1] if host == 0 else keys[1] + keys[0]
        assert (
            backend._lib.link(backend._core, sockets, b"".join(bytes(64) if h == host else mine for h in range(2))) == 0
        )
    try:
        yield backends
    finally:
        closers = [threading.Thread(target=shut, args=(backend,)) for backend in backends]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join(DEADLINE_S)
        for end in (*near[1:], *far[:1]):
            end.close()


def shut(backend: TableBackend) -> None:
    backend.leave()
    backend._lib.linger(backend._core, 5_000_000)
    backend.close()


def forward(source: socket.socket, target: socket.socket, change: Change) -> None:
    passed = 0
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(change(passed, data))
            passed += len(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def allreduce(backends: list[TableBackend], count: int, dtype: DType = DType.FLOAT32) -> list[np.ndarray | HoraError]:
    """What each rank gets for the sum of its rank + 1 and the other's, or raises."""
    request = Request(Kind.ALLREDUCE, f"allreduce.{count}", (Segment(dtype, (count,)),), (0, 1), op=ReduceOp.SUM)
    results: list[np.ndarray | HoraError] = [HoraError("it did not come back")] * 2

    def one(rank: int) -> None:
        array = (np.arange(count) % 7 + rank).astype(np.float32 if dtype is DType.FLOAT32 else np.int64)
        buffer = Buffer(array.ctypes.data, dtype, array.shape, array)
        try:
            backends[rank].wait(backends[rank].submit(request, [buffer], [buffer]))
            results[rank] = array
        except HoraError as error:
            results[rank] = error

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    return results


@pytest.mark.parametrize("count", [1, 2048, 2049, 70_001, 1_000_003])
def test_what_two_hosts_add_up_is_right_in_whatever_pieces_it_travels(count: int) -> None:
    with hosts() as backends:
        for _ in range(3):
            for result in allreduce(backends, count):
                assert isinstance(result, np.ndarray), result
                np.testing.assert_array_equal(result, (np.arange(count) % 7) * 2 + 1)


@pytest.mark.parametrize("place", [20, 40, 5_000, 300_000])
def test_a_frame_that_was_altered_ends_the_job_and_no_number_comes_of_it(place: int) -> None:
    def flip(passed: int, data: bytes) -> bytes:
        at = place - passed
        return data if not 0 <= at < len(data) else data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    with hosts(flip) as backends:
        results = allreduce(backends, 1_000_003)
    assert all(isinstance(result, PeerLostError) for result in results), results
    told = " ".join(map(str, results))
    assert "does not authenticate" in told or "too long" in told or "not asked for" in told


def test_frames_of_another_connection_end_the_job() -> None:
    heard = bytearray()

    def listen(_passed: int, data: bytes) -> bytes:
        heard.extend(data)
        return data

    with hosts(listen) as backends:
        assert all(isinstance(result, np.ndarray) for result in allreduce(backends, 1))
    with hosts(lambda passed, data: bytes(heard) + data if passed == 0 else data) as backends:
        results = allreduce(backends, 1)
    assert all(isinstance(result, PeerLostError) for result in results), results
