"""The connections between hosts: what travels on them is right, proven, and belongs to its place in the stream."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from tests.native.test_mac import siphash, words_of

from hora.config.settings import Settings
from hora.engine.backend import NotFinite
from hora.engine.request import Request, TensorSpec
from hora.engine.table import TableBackend
from hora.errors import HoraError, PeerLostError, ShutDownError
from hora.transport import shm
from hora.types import Buffer, DType, Kind, ReduceOp, Reduction
from hora.wire.messages import Peer

DEADLINE_S = 60.0

Change = Callable[[int, bytes], bytes]  # the bytes that have passed before, and what comes


@contextlib.contextmanager
def hosts(
    change: Change = lambda passed, data: data, workers: int = 1, arena_bytes: int = 64 << 20, count: int = 2
) -> Iterator[list[TableBackend]]:
    """Hosts of so many workers in this process; ``change`` sees what the second's leader sends to the first's."""
    host_of = [host for host in range(count) for _ in range(workers)]
    peers = [Peer(rank, rank, os.getpid(), f"host{host}") for rank, host in enumerate(host_of)]
    backends = []
    for host in range(count):
        segment = shm.Segment(len(host_of), 1, arena_bytes, host_of, host)
        ranks = range(host * workers, (host + 1) * workers)
        backends += [TableBackend(segment.fd, rank, peers, Settings(), 1) for rank in ranks]
        segment.close()
    sockets, keys = [[-1] * count for _ in range(count)], [[bytes(64)] * count for _ in range(count)]
    others: list[socket.socket] = []
    for low in range(count):
        for high in range(low + 1, count):
            near, far = socket.socketpair(), socket.socketpair()
            up, down = os.urandom(32), os.urandom(32)
            sockets[low][high], sockets[high][low] = near[0].detach(), far[1].detach()
            keys[low][high], keys[high][low] = up + down, down + up
            seen = change if (low, high) == (0, 1) else lambda _, data: data
            for way in ((near[1], far[0], lambda _, data: data), (far[0], near[1], seen)):
                threading.Thread(target=forward, args=way, daemon=True).start()
            others += [near[1], far[0]]
    for host, backend in enumerate(backends[::workers]):
        ends = (ctypes.c_int32 * count)(*sockets[host])
        assert backend._lib.link(backend._core, ends, b"".join(keys[host]), None, None) == 0
    try:
        yield backends
    finally:
        closers = [threading.Thread(target=shut, args=(backend,)) for backend in backends]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join(DEADLINE_S)
        for end in others:
            end.close()


def shut(backend: TableBackend, linger_us: int = 5_000_000) -> None:
    if backend._core:
        backend.leave()
        if backend._lib.linger(backend._core, linger_us) == 1:  # as engine.links
            backend._lib.linger(backend._core, 0)
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
    request = Request(Kind.ALLREDUCE, f"allreduce.{count}", (TensorSpec(dtype, (count,)),), (0, 1))
    results: list[np.ndarray | HoraError] = [HoraError("it did not come back")] * 2

    def one(rank: int) -> None:
        array = (np.arange(count) % 7 + rank).astype(np.float32 if dtype is DType.FLOAT32 else np.int64)
        buffer = Buffer(array.ctypes.data, dtype, array.shape, array)
        try:
            backends[rank].prepare(request).start([buffer], [buffer]).wait()
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


@pytest.mark.parametrize("place", [0, 1, 2, 3, 20, 40, 5_000, 300_000, 300_003])
def test_a_frame_that_was_altered_ends_the_job_and_no_number_comes_of_it(place: int) -> None:
    def flip(passed: int, data: bytes) -> bytes:
        at = place - passed
        return data if not 0 <= at < len(data) else data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    with hosts(flip) as backends:
        results = allreduce(backends, 1_000_003)
    assert all(isinstance(result, PeerLostError) for result in results), results
    assert "does not authenticate" in " ".join(map(str, results))  # also of a length, whose rest nobody waits for


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


def not_finite(
    backends: list[TableBackend], name: str, arrays: list[list[np.ndarray]], op: ReduceOp, wire: DType | None = None
) -> list[tuple[NotFinite, ...]]:
    """What each rank is told of the sum of what all bring: several arrays of one operation."""
    segments = tuple(TensorSpec(DType[a.dtype.name.upper()], a.shape) for a in arrays[0])
    request = Request(Kind.ALLREDUCE, name, segments, tuple(range(len(backends))), how=Reduction(op, wire=wire))
    found: list[tuple[NotFinite, ...]] = [(NotFinite(-2, 0, 0, False),)] * len(backends)

    def one(rank: int) -> None:
        buffers = [Buffer(a.ctypes.data, DType[a.dtype.name.upper()], a.shape, a) for a in arrays[rank]]
        found[rank] = backends[rank].prepare(request).start(buffers, buffers).wait().not_finite

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(len(backends))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    return found


@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.AVERAGE])
@pytest.mark.parametrize("count", [1, 3000, 400_003])
def test_who_brought_inf_or_nan_is_told_to_all(count: int, op: ReduceOp) -> None:
    """As on one host: small and large, the first place of each rank, and nobody's if the sum is too large."""
    with hosts() as backends:
        for dtype, turn in ((np.float32, 0), (np.float64, 1), (np.float16, 2)):
            fine = [[np.ones(count, dtype), np.ones(7, dtype)] for _ in range(2)]
            assert not_finite(backends, f"fine {turn}", fine, op) == [(), ()]
            for place in {0, count // 2, count - 1}:
                bad = [[np.ones(count, dtype), np.ones(7, dtype)] for _ in range(2)]
                bad[1][0][place:] = np.nan
                bad[0][1][3] = np.inf
                told = (NotFinite(0, 1, 3, False), NotFinite(1, 0, place, True))
                assert not_finite(backends, f"bad {turn}", bad, op) == [told, told], (dtype, place)
            assert not_finite(backends, f"fine {turn}", fine, op) == [(), ()]
        large = [[np.full(count, 3e38, np.float32)] for _ in range(2)]
        told = (NotFinite(-1, 0, 0, False),)
        assert not_finite(backends, "too large", large, ReduceOp.SUM) == [told, told]


@pytest.mark.parametrize("count", [3000, 400_003])
def test_who_brought_inf_or_nan_is_found_among_the_workers_of_a_host(count: int) -> None:
    with hosts(workers=3) as backends:
        for culprits in ((1,), (0, 5), (2, 3, 4)):
            bad = [[np.ones(count, np.float32), np.ones(9)] for _ in range(6)]
            for rank in culprits:
                bad[rank][0][count - 1 - rank] = np.nan
            told = tuple(NotFinite(rank, 0, count - 1 - rank, True) for rank in culprits)
            assert not_finite(backends, "bad", bad, ReduceOp.AVERAGE) == [told] * 6
        large = [[np.full(count, 3e38 if rank < 3 else 1, np.float32)] for rank in range(6)]
        assert not_finite(backends, "too large", large, ReduceOp.SUM) == [(NotFinite(-1, 0, 0, False),)] * 6
        fine = [[np.ones(count, np.float32), np.ones(9)] for _ in range(6)]
        assert not_finite(backends, "bad", fine, ReduceOp.AVERAGE) == [()] * 6


def test_who_brought_inf_or_nan_is_told_where_sums_are_rounded() -> None:
    with hosts() as backends:
        bad = [[np.ones(100_001, np.float32)] for _ in range(2)]
        bad[0][0][70_000] = -np.inf
        told = (NotFinite(0, 0, 70_000, False),)
        assert not_finite(backends, "rounded", bad, ReduceOp.SUM, DType.BFLOAT16) == [told, told]


def everybody(backends: list[TableBackend], act: Callable[[int], None]) -> None:
    """Let all ranks do it at once, and raise what one of them raised."""
    raised: list[BaseException] = []

    def one(rank: int) -> None:
        try:
            act(rank)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(len(backends))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    if raised:
        raise raised[0]


def buffer_of(array: np.ndarray) -> Buffer:
    return Buffer(array.ctypes.data, DType[array.dtype.name.upper()], array.shape, array)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_a_reducescatter_needs_no_more_of_the_arena_than_its_input(workers: int, dtype: type) -> None:
    """Integers averaged cannot be summed on the way: then what comes is in a file beside the arena."""
    with hosts(workers=workers, arena_bytes=1 << 20) as backends:
        size = 2 * workers
        shapes = (100_003 if dtype is np.float32 else 50_003,), (7, 3)
        specs = tuple(TensorSpec(DType[np.dtype(dtype).name.upper()], shape) for shape in shapes)
        how = Reduction(ReduceOp.SUM if dtype is np.float32 else ReduceOp.AVERAGE)
        rows = [[shape[0] // size + (rank < shape[0] % size) for shape in shapes] for rank in range(size)]
        wanted = [sum(np.arange(np.prod(s)).reshape(s) % 1000 * (r + 1) for r in range(size)) for s in shapes]
        if how.op is ReduceOp.AVERAGE:
            wanted = [total // size for total in wanted]

        def one(rank: int) -> None:
            for turn in range(3):  # under three names: what one keeps for the next time makes room for others
                request = Request(Kind.REDUCESCATTER, f"scatter.{turn}", specs, tuple(range(size)), how=how)
                given = [(np.arange(np.prod(s)).reshape(s) % 1000 * (rank + 1)).astype(dtype) for s in shapes]
                got = [np.zeros((n, *s[1:]), dtype) for n, s in zip(rows[rank], shapes, strict=True)]
                before = [a.copy() for a in given]
                operation = backends[rank].prepare(request)
                operation.start([buffer_of(a) for a in given], [buffer_of(a) for a in got]).wait()
                for k, total in enumerate(wanted):
                    low = sum(rows[r][k] for r in range(rank))
                    np.testing.assert_array_equal(got[k], total[low : low + rows[rank][k]])
                    np.testing.assert_array_equal(given[k], before[k])

        everybody(backends, one)
        no_overflow_left()


def test_what_finds_no_room_in_the_arena_is_received_beside_it() -> None:
    with hosts(workers=2, arena_bytes=1 << 20) as backends:

        def one(rank: int) -> None:
            for turn in range(2):
                request = Request(
                    Kind.ALLGATHER, f"gather.{turn}", (TensorSpec(DType.FLOAT32, (150_000,)),), (0, 1, 2, 3)
                )
                array = np.arange(150_000, dtype=np.float32) + rank
                outcome = backends[rank].prepare(request).start([buffer_of(array)], []).wait()
                got = np.frombuffer(outcome.memory[0], np.float32).reshape(4, -1)
                np.testing.assert_array_equal(got, np.arange(150_000, dtype=np.float32) + np.arange(4)[:, None])

        everybody(backends, one)
        no_overflow_left()


def no_overflow_left() -> None:
    """The files beside the arena are closed once all have taken what is in them, when the core's thread comes by."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        found = []
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                found.append(os.readlink(f"/proc/self/fd/{fd}"))
        if not any("hora-overflow" in path for path in found):
            return
        assert time.monotonic() < deadline, found
        time.sleep(0.01)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("wire", [DType.FLOAT16, DType.BFLOAT16])
def test_what_is_too_large_once_it_is_rounded_is_told_to_all(workers: int, wire: DType) -> None:
    """Of the sum, and of what one rank brought, which was finite: nobody is said to have brought inf."""
    count, half = 100_000, {DType.FLOAT16: 40_000.0, DType.BFLOAT16: 1.7e38}[wire]
    nobody = NotFinite(-1, 0, 0, False)
    with hosts(workers=workers) as backends:
        size = 2 * workers
        arrays = [[np.full(count, half if rank in (0, size - 1) else 0, np.float32)] for rank in range(size)]
        assert not_finite(backends, "the sum", arrays, ReduceOp.SUM, wire) == [(nobody,)] * size
        assert all(np.isinf(own).all() for (own,) in arrays)
        for rank in (0, size - 1):  # either has shares that it sums itself, and others that it sends
            arrays = [[np.ones(count, np.float32)] for _ in range(size)]
            arrays[rank][0][:] = 3.4e38 if wire is DType.BFLOAT16 else 70_000
            told = not_finite(backends, f"one's {rank}", arrays, ReduceOp.SUM, wire)
            assert told == [(nobody,)] * size, rank
            arrays = [[np.ones(count, np.float32)] for _ in range(size)]
            arrays[rank][0][3] = np.nan
            arrays[rank][0][count - 1] = 70_000 if wire is DType.FLOAT16 else 3.4e38
            told = (NotFinite(rank, 0, 3, True), NotFinite(-1, 0, count - 1, False))
            assert not_finite(backends, f"both {rank}", arrays, ReduceOp.SUM, wire) == [told] * size, rank
        fine = [[np.ones(count, np.float32)] for _ in range(size)]
        assert not_finite(backends, "the sum", fine, ReduceOp.SUM, wire) == [()] * size


GRACE_S = 1.0  # link.h: GRACE_NS


def summed(backend: TableBackend, ranks: tuple[int, ...], name: str, count: int = 70_000) -> None:
    """An allreduce of ones, with its result looked at."""
    array = np.ones(count, np.float32)
    request = Request(Kind.ALLREDUCE, name, (TensorSpec(DType.FLOAT32, (count,)),), ranks)
    backend.prepare(request).start([buffer_of(array)], [buffer_of(array)]).wait()
    np.testing.assert_array_equal(array, np.full(count, len(ranks), np.float32))


def go_on(backend: TableBackend, ranks: tuple[int, ...]) -> None:
    """The same operations on all of them, for longer than a broken connection would be borne."""
    started, turns = time.monotonic(), 20
    for turn in range(turns):
        summed(backend, ranks, "here")
        summed(backend, ranks, "small", 3)
        while time.monotonic() < started + 2 * GRACE_S * turn / turns:
            time.sleep(0.001)


@pytest.mark.parametrize("leaves", [0, 1])
def test_a_host_goes_on_when_another_has_left_for_good(leaves: int) -> None:
    """Longer than a broken connection would be borne, and what needs the others is refused."""
    gone, stay = ((0, 1), (2, 3)) if leaves == 0 else ((2, 3), (0, 1))
    with hosts(workers=2) as backends:
        everybody(backends, lambda rank: summed(backends[rank], (0, 1, 2, 3), "all"))

        def stays(rank: int) -> None:
            go_on(backends[rank], stay)
            with pytest.raises(ShutDownError, match=f"{gone[0]}, {gone[1]}"):
                summed(backends[rank], (0, 1, 2, 3), "everywhere")

        everybody(backends, lambda rank: shut(backends[rank], 100_000) if rank in gone else stays(rank))


def test_hosts_that_lose_the_one_that_decided_refuse_what_needs_each_other() -> None:
    """Both ends of an operation that can no longer be agreed on are told who has left; nobody waits."""
    with hosts(count=3, workers=2) as backends:
        everybody(backends, lambda rank: summed(backends[rank], tuple(range(6)), "all"))
        everybody(
            backends,
            lambda rank: shut(backends[rank], 100_000) if rank < 2 else summed(backends[rank], (2, 3, 4, 5), "two"),
        )

        def one(rank: int) -> None:
            with pytest.raises(ShutDownError, match="rank"):  # also of what was begun before it was known
                while True:
                    summed(backends[rank], (2, 3, 4, 5), "two")
            go_on(backends[rank], (2, 3) if rank < 4 else (4, 5))

        everybody(backends[2:], lambda place: one(place + 2))


class FakeLeader:
    """Speaks as the leader of one of two hosts, with keys that the other takes for the right ones."""

    SET, TELL, DECIDE, FAIL, JOIN = 1, 2, 3, 10, 6  # link.h: enum frame_type

    def __init__(self, sock: socket.socket, key: bytes) -> None:
        self._sock, self._key, self._sent = sock, key, 0
        sock.settimeout(DEADLINE_S)

    def say(self, kind: int, order: int, body: bytes) -> None:
        words = [len(body) << 32 | kind, order, 0]
        head = siphash(self._key[:16], [~self._sent & (1 << 64) - 1, *words])
        code = siphash(self._key[:16], [self._sent, *words, *words_of(body)])
        self._sock.sendall(struct.pack("<IHHQQQQ", len(body), kind, 0, order, 0, head, code) + body)
        self._sent += 1

    def hear(self, kind: int) -> bytes:
        """The next frame of that kind."""
        while True:
            length, found = struct.unpack_from("<IH", self._take(40))
            body = self._take(length)
            if found == kind:
                return body

    def _take(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._sock.recv(size - len(data))
            assert part, "it hung up"
            data += part
        return data


@contextlib.contextmanager
def beside_a_fake(host: int) -> Iterator[tuple[TableBackend, FakeLeader]]:
    """The one rank of this host of two, and who speaks for the other."""
    segment = shm.Segment(2, 1, 1 << 20, [0, 1], host)
    peers = [Peer(rank, rank, os.getpid(), f"host{rank}") for rank in range(2)]
    backend = TableBackend(segment.fd, host, peers, Settings(), 1)
    segment.close()
    mine, theirs = socket.socketpair()
    key = os.urandom(32)
    keys = [bytes(64), key + key]
    sockets = [-1, mine.detach()]
    turn = 1 if host == 0 else -1
    assert (
        backend._lib.link(backend._core, (ctypes.c_int32 * 2)(*sockets[::turn]), b"".join(keys[::turn]), None, None)
        == 0
    )
    try:
        yield backend, FakeLeader(theirs, key)
    finally:
        theirs.close()
        backend.close()


def ends(backend: TableBackend) -> str:
    """What the job ends with."""
    with pytest.raises(PeerLostError) as raised:
        summed(backend, (0, 1), "never", 3)
    return str(raised.value)


@pytest.mark.parametrize("rank", [2, 1 << 31, 1 << 32, (1 << 63) - 1])
def test_a_host_that_says_that_a_rank_joins_which_there_is_not_ends_the_job(rank: int) -> None:
    with beside_a_fake(0) as (backend, fake):
        fake.say(FakeLeader.JOIN, 0, struct.pack("<Q", (rank << 1) & (1 << 64) - 1))
        assert "sent an invalid message" in ends(backend)


@pytest.mark.parametrize("length", [8, (1 << 64) - 4, (1 << 64) - 1])
def test_a_host_that_announces_more_than_it_says_ends_the_job(length: int) -> None:
    with beside_a_fake(0) as (backend, fake):
        fake.say(FakeLeader.FAIL, 0, struct.pack("<QQQQQ", 1, 2, 0, 4, length))
        assert "sent an invalid message" in ends(backend)


@pytest.mark.parametrize("sizes", [[], [8, 8], [1 << 62], [-8]])
def test_a_host_that_says_other_sizes_than_an_allgather_has_ends_the_job(sizes: list[int]) -> None:
    with beside_a_fake(1) as (backend, fake):
        array = np.ones(2, np.float32)
        request = Request(Kind.ALLGATHER, "gather", (TensorSpec(DType.FLOAT32, (2,)),), (0, 1))
        under_way = backend.prepare(request).start([buffer_of(array)], [])
        told = fake.hear(FakeLeader.TELL)
        brought = struct.pack("<IIII", 1, 1, 16, 0) + struct.pack("<q", 8) + array.tobytes()
        wrong = struct.pack(f"<{len(sizes)}q", *sizes) + bytes(8)
        brought += struct.pack("<IIII", 0, len(sizes), len(wrong), 0) + wrong
        fake.say(FakeLeader.DECIDE, 1, told[:56] + struct.pack("<IIIIII", 0, 0, 2, len(brought), 0, 0) + brought)
        with pytest.raises(PeerLostError, match="sent an invalid message"):
            under_way.wait()


@pytest.mark.parametrize("room", [0, 1])
def test_links_that_cannot_be_made_give_back_their_descriptors_and_no_others(room: int) -> None:
    """With room for so many more descriptors: it needs one to wait on, and one to be woken by."""
    stdin = os.fstat(0)
    segment = shm.Segment(2, 1, 1 << 20, [0, 1], 0)
    peers = [Peer(rank, rank, os.getpid(), f"host{rank}") for rank in range(2)]
    backend = TableBackend(segment.fd, 0, peers, Settings(), 1)
    segment.close()
    mine, theirs = socket.socketpair()
    ends = (ctypes.c_int32 * 2)(-1, mine.detach())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    fillers: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 2, hard))
        with contextlib.suppress(OSError):  # what is free below the limit
            while True:
                fillers.append(os.dup(0))
        for _ in range(room):
            os.close(fillers.pop())
        error = backend._lib.link(backend._core, ends, bytes(128), None, None)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for filler in fillers:
            os.close(filler)
    assert error == errno.EMFILE
    backend.close()
    assert os.path.samestat(os.fstat(0), stdin)
    theirs.settimeout(DEADLINE_S)
    assert theirs.recv(1) == b"", "the connection is still open"
    theirs.close()


@pytest.mark.parametrize("leader", [0, 2])
def test_a_leader_that_goes_first_leaves_nobody_waiting(leader: int) -> None:
    """Its host loses the way to the other; inside hosts all goes on."""
    with hosts(workers=2) as backends:
        everybody(backends, lambda rank: summed(backends[rank], (0, 1, 2, 3), "all"))
        begun = threading.Barrier(4)

        def one(rank: int) -> None:
            if rank == leader:
                begun.wait(DEADLINE_S)
                shut(backends[rank], linger_us=50_000)
                return
            if rank == leader + 1:  # the other of its host waits for something that the others do not begin
                array = np.ones(9, np.float32)
                request = Request(
                    Kind.ALLREDUCE,
                    "between",
                    (TensorSpec(DType.FLOAT32, (9,)),),
                    tuple(r for r in range(4) if r != leader),
                )
                waiting = backends[rank].prepare(request).start([buffer_of(array)], [buffer_of(array)])
                begun.wait(DEADLINE_S)
                with pytest.raises(ShutDownError):
                    waiting.wait()
                with pytest.raises(ShutDownError):
                    summed(backends[rank], tuple(r for r in range(4) if r != leader), "later")
                return
            begun.wait(DEADLINE_S)
            go_on(backends[rank], (2, 3) if leader == 0 else (0, 1))
            with pytest.raises(ShutDownError):
                summed(backends[rank], (0, 1, 2, 3), "everywhere")

        everybody(backends, one)
