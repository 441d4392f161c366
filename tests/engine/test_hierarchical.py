"""Shared memory inside hosts and something else between them: every operation, on every layout of hosts.

The ranks are threads of this process; between hosts the in-memory transport carries the data and checks that all
leaders make the same calls.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engine.talk_bodies import sample
from tests.multi.hosts import Hosts
from tests.prompt import PROMPT_S
from tests.transport.fake import Exchange, FakeMover

from hora.config.settings import Settings
from hora.engine import hierarchical
from hora.engine.hierarchical import HierarchicalMover, stages
from hora.errors import HoraError
from hora.transport import shm
from hora.transport.arithmetic import adasum, reduce_parts
from hora.transport.base import Mover
from hora.types import Buffer, DType, ReduceOp
from hora.wire.messages import Peer

pytestmark = pytest.mark.skipif(not shm.available(), reason=shm.why_not())

ROOT = Path(__file__).parents[2]
LAYOUTS = ("aabb", "aab", "ab", "aaab", "abab", "abba", "aa", "a", "abc", "aabbc")
Array = np.ndarray[Any, Any]


class Store:
    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._set = threading.Condition()

    def set(self, key: str, value: bytes) -> None:
        with self._set:
            self._values[key] = value
            self._set.notify_all()

    def get(self, key: str, timeout_s: float) -> bytes | None:
        with self._set:
            self._set.wait_for(lambda: key in self._values, timeout_s)
            return self._values.get(key)


class World:
    """A mover a rank, each in a thread while ``each`` runs."""

    def __init__(self, hosts: str, longest_wait_s: float = 10.0) -> None:
        self.size, self.exchange = len(hosts), Exchange()
        peers = [Peer(rank, rank, os.getpid(), host) for rank, host in enumerate(hosts)]
        store, settings = Store(), Settings(arena_bytes=64 << 20)

        def make(rank: int) -> Mover:
            return HierarchicalMover(1, rank, peers, store, settings, FakeMover(self.exchange, rank, longest_wait_s))

        self.movers = [make(rank) for rank in range(self.size)]

    def each(self, body: Callable[[int, Mover], Any], ranks: tuple[int, ...] | None = None) -> list[Any]:
        results: list[Any] = [None] * self.size

        def run(rank: int) -> None:
            try:
                results[rank] = body(rank, self.movers[rank])
            except Exception as error:
                results[rank] = error

        threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in ranks or range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in threads), "a rank hangs"
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, HoraError):
                raise result
        return results

    def close(self) -> None:
        self.each(lambda rank, mover: mover.close())


@pytest.fixture(params=LAYOUTS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(request.param)
    yield world
    world.close()


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hierarchical, "_LEAST_BYTES", 1 << 10)
    monkeypatch.setattr(hierarchical, "_MOST_BYTES", 4 << 10)


def buffer(array: Array, dtype: DType) -> Buffer:
    return Buffer(array.ctypes.data, dtype, array.shape, array)


def close_enough(got: Array, expected: Array, dtype: DType) -> bool:
    if dtype is DType.BFLOAT16:
        wide = [(a.astype("uint32") << 16).view("float32") for a in (got, expected)]
        return bool(np.allclose(*wide, rtol=0.03, atol=0.03))
    if dtype.numpy.startswith("float"):
        tolerance = {"float16": 0.01, "float32": 1e-5, "float64": 1e-12}[dtype.numpy]
        return bool(np.allclose(got, expected, rtol=tolerance, atol=tolerance))
    return bool(np.array_equal(got, expected))


def everyone(world: World) -> tuple[int, ...]:
    return tuple(range(world.size))


@pytest.mark.usefixtures("small_chunks")
def test_every_type_and_operation(world: World) -> None:
    ops = (ReduceOp.SUM, ReduceOp.AVERAGE, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT)
    cases = [
        (dtype, op, count, scales)
        for dtype in DType
        for op in ops
        for count, scales in ((0, (1.0, 1.0)), (5, (0.5, 3.0)), (5, (1.0, 1.0)), (9001, (1.0, 1.0)), (9001, (0.5, 3.0)))
    ]

    def body(rank: int, mover: Mover) -> list[Array]:
        results = []
        for dtype, op, count, (before, after) in cases:
            source = sample(dtype, rank, count)
            target = source if count == 5 else np.zeros_like(source)
            mover.allreduce(
                [buffer(source, dtype)], [buffer(target, dtype)], op=op, prescale=before, postscale=after,
                members=everyone(world), contributors=everyone(world), divisor=world.size,
            )  # fmt: skip
            results.append(target)
        return results

    results = world.each(body)
    for i, (dtype, op, count, (before, after)) in enumerate(cases):
        parts = [sample(dtype, rank, count) for rank in range(world.size)]
        expected = reduce_parts(parts, dtype, op, before, after, world.size)
        case = (dtype.name, op.name, count, before, after)
        assert close_enough(results[0][i], expected, dtype), (case, results[0][i], expected)
        assert all(np.array_equal(r[i].view("uint8"), results[0][i].view("uint8")) for r in results), case


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("wire", [DType.BFLOAT16, DType.FLOAT16], ids=["bf16", "fp16"])
def test_rounding_only_between_hosts(world: World, wire: DType) -> None:
    """Every host's sum is exact; only what leaves it is rounded, so a job on one host is not rounded at all."""
    cases = [(op, count, scales) for op in (ReduceOp.SUM, ReduceOp.AVERAGE) for count in (5, 700, 9001)
             for scales in ((1.0, 1.0), (0.5, 3.0))]  # fmt: skip

    def body(rank: int, mover: Mover) -> list[Array]:
        results = []
        for op, count, (before, after) in cases:
            mine = np.split(sample(DType.FLOAT32, rank, count), [count // 3])
            buffers = [buffer(array, DType.FLOAT32) for array in mine]
            mover.allreduce(
                buffers, buffers, op=op, prescale=before, postscale=after, members=everyone(world),
                contributors=everyone(world), divisor=world.size, wire=wire,
            )  # type: ignore[call-arg]  # fmt: skip
            results.append(np.concatenate(mine))
        return results

    results = world.each(body)
    one_host = len({peer.host for peer in world.movers[0]._peers}) == 1  # type: ignore[attr-defined]
    tolerance = 1e-6 if one_host else {DType.BFLOAT16: 0.02, DType.FLOAT16: 0.002}[wire]
    for i, (op, count, (before, after)) in enumerate(cases):
        parts = [sample(DType.FLOAT32, rank, count) for rank in range(world.size)]
        expected = reduce_parts(parts, DType.FLOAT32, op, before, after, world.size)
        largest = np.abs(parts).sum(axis=0).max() * before * after
        assert np.abs(results[0][i] - expected).max() <= tolerance * largest, (op.name, count, before, after)
        assert all(np.array_equal(r[i], results[0][i]) for r in results), (op.name, count)
        if not one_host and count == 9001:
            assert not np.allclose(results[0][i], expected, rtol=1e-6), "nothing was rounded"


@pytest.mark.usefixtures("small_chunks")
def test_several_tensors_of_several_types_in_one_go(world: World) -> None:
    counts = {DType.FLOAT32: (3, 0, 12_345), DType.INT64: (7, 2), DType.FLOAT64: (20_000,)}

    def arrays(rank: int) -> list[tuple[DType, Array]]:
        return [(dtype, np.full(count, rank + 1.0).astype(dtype.numpy)) for dtype in counts for count in counts[dtype]]

    def body(rank: int, mover: Mover) -> list[Array]:
        mine = arrays(rank)
        buffers = [buffer(array, dtype) for dtype, array in mine]
        mover.allreduce(
            buffers, buffers, op=ReduceOp.SUM, prescale=1.0, postscale=1.0, members=everyone(world),
            contributors=everyone(world), divisor=1,
        )  # fmt: skip
        return [array for _, array in mine]

    for result in world.each(body):
        assert all((array == sum(range(1, world.size + 1))).all() for array in result)


def test_half_of_the_ranks_have_joined(world: World) -> None:
    """Any part of the ranks may be left, on any of the hosts."""

    def body(rank: int, mover: Mover) -> list[float]:
        seen = []
        for absent in range(world.size):
            left = tuple(r for r in everyone(world) if r != absent)
            for count in (2, 5000):
                mine = np.full(count, rank + 1.0)
                buffers = [buffer(mine, DType.FLOAT64)] if rank in left else []
                mover.allreduce(
                    buffers, buffers, op=ReduceOp.AVERAGE, prescale=1.0, postscale=1.0, members=everyone(world),
                    contributors=left, divisor=world.size,
                )  # fmt: skip
                seen.append(mine[-1] if rank in left else 0.0)
        return seen

    if world.size == 1:
        return
    total = sum(range(1, world.size + 1))
    expected = [(total - absent - 1) / world.size for absent in range(world.size) for _ in range(2)]
    for rank, seen in enumerate(world.each(body)):
        wanted = [0.0 if i // 2 == rank else value for i, value in enumerate(expected)]
        assert np.allclose(seen, wanted), rank


@pytest.mark.usefixtures("small_chunks")
def test_the_other_operations(world: World) -> None:
    size = world.size
    members = everyone(world)

    def body(rank: int, mover: Mover) -> dict[str, Any]:
        report: dict[str, Any] = {}
        for name, rows in (("even", [2] * size), ("uneven", list(range(size))), ("long", [40_000] * size)):
            mine, target = np.full(rows[rank], rank, "int16"), np.zeros(sum(rows), "int16")
            mover.allgather(
                buffer(mine, DType.INT16), buffer(target, DType.INT16), nbytes=[2 * n for n in rows], members=members
            )
            report[name] = np.array_equal(target, np.repeat(np.arange(size), rows))
        for root in members:
            for count in (3, 60_001):
                mine = np.arange(count, dtype="float32") + rank
                target = mine if root % 2 else np.zeros_like(mine)
                mover.broadcast(buffer(mine, DType.FLOAT32), buffer(target, DType.FLOAT32), root=root, members=members)
                report[f"broadcast {root} {count}"] = np.array_equal(target, np.arange(count, dtype="float32") + root)
        sent = [4 * (to + 1) for to in members]
        mine = np.concatenate([np.full(to + 1, 10 * rank + to, "int32") for to in members])
        target = np.zeros(size * (rank + 1), "int32")
        mover.alltoall(
            buffer(mine, DType.INT32), buffer(target, DType.INT32), sent=sent, received=[4 * (rank + 1)] * size,
            members=members,
        )  # fmt: skip
        report["alltoall"] = np.array_equal(target, np.repeat([10 * r + rank for r in members], rank + 1))
        mine, target = np.arange(3.0 * size) * (rank + 1), np.zeros(3)
        mover.reducescatter(
            buffer(mine, DType.FLOAT64), buffer(target, DType.FLOAT64), op=ReduceOp.SUM, prescale=1.0, postscale=1.0,
            counts=[3] * size, members=members, divisor=1,
        )  # fmt: skip
        report["reducescatter"] = np.allclose(target, np.arange(3.0 * rank, 3.0 * rank + 3) * sum(range(1, size + 1)))
        if size & (size - 1) == 0:
            mine = np.arange(1.0, 7.0) * (rank + 1)
            mover.allreduce(
                [buffer(mine, DType.FLOAT64)], [buffer(mine, DType.FLOAT64)], op=ReduceOp.ADASUM, prescale=1.0,
                postscale=1.0, members=members, contributors=members, divisor=1,
            )  # fmt: skip
            parts = [np.arange(1.0, 7.0) * (r + 1) for r in members]
            report["adasum"] = np.allclose(mine, adasum(parts, DType.FLOAT64, 1.0, 1.0))
        return report

    for rank, report in enumerate(world.each(body)):
        assert all(report.values()), (rank, report)


def test_a_set_on_one_host_needs_no_network() -> None:
    world = World("aabb")

    def body(rank: int, mover: Mover) -> float:
        pair = (0, 1) if rank < 2 else (2, 3)
        mine = np.full(3, rank + 1.0)
        mover.allreduce(
            [buffer(mine, DType.FLOAT64)], [buffer(mine, DType.FLOAT64)], op=ReduceOp.AVERAGE, prescale=1.0,
            postscale=1.0, members=pair, contributors=pair, divisor=2,
        )  # fmt: skip
        return float(mine[0])

    assert world.each(body) == [1.5, 1.5, 3.5, 3.5]
    assert world.exchange.calls == 0
    world.close()


def test_only_leaders_use_the_network_and_take_turns() -> None:
    world = World("aaabb")

    def body(rank: int, mover: Mover) -> float:
        mine = np.full(4 << 20, rank + 1.0, "float32")
        mover.allreduce(
            [buffer(mine, DType.FLOAT32)], [buffer(mine, DType.FLOAT32)], op=ReduceOp.SUM, prescale=1.0, postscale=1.0,
            members=everyone(world), contributors=everyone(world), divisor=1,
        )  # fmt: skip
        return float(mine[-1])

    assert world.each(body) == [15.0] * 5
    assert {members: turns for (members, _), turns in world.exchange._turns.items()} == {(0, 3): 4, (1, 4): 4}
    world.close()


def test_a_half_average_does_not_overflow_on_the_way() -> None:
    how = stages(DType.FLOAT16, ReduceOp.AVERAGE, 1.0, 1.0, 4)
    assert how is not None and how.prescale == 0.25
    assert stages(DType.FLOAT16, ReduceOp.PRODUCT, 1.0, 1.0, 4) is None
    assert stages(DType.INT32, ReduceOp.SUM, 0.5, 1.0, 4) is None


@pytest.mark.parametrize("count", [3, 4 << 20])
@pytest.mark.parametrize("missing", [1, 2, 3])
def test_abort_ends_what_waits(count: int, missing: int) -> None:
    """One rank does not come: the rest hang in shared memory or in the network until they are told."""
    world = World("aabb", longest_wait_s=3.0)
    others = tuple(r for r in range(4) if r != missing)
    began = threading.Barrier(len(others) + 1)

    def body(rank: int, mover: Mover) -> float:
        mine = np.ones(count, "float32")
        began.wait(10)
        mover.allreduce(
            [buffer(mine, DType.FLOAT32)], [buffer(mine, DType.FLOAT32)], op=ReduceOp.SUM, prescale=1.0, postscale=1.0,
            members=(0, 1, 2, 3), contributors=(0, 1, 2, 3), divisor=1,
        )  # fmt: skip
        return 0.0

    def abort() -> None:
        began.wait(10)
        for rank in others:
            world.movers[rank].abort("rank x died")

    thread = threading.Thread(target=abort)
    thread.start()
    started = time.monotonic()
    results = world.each(body, others)
    assert time.monotonic() - started < PROMPT_S
    assert all(isinstance(results[rank], HoraError) for rank in others), results
    thread.join(5)
    world.close()


# ---- real processes, killed ----

DYING = """
import json, os, sys, time
import numpy as np
os.environ["HORA_TRANSPORT"] = "shm+gloo"
from hora.engine import session
from hora.engine.request import OperationSpec, forms
from hora.errors import HoraError
from hora.types import Buffer, DType, Kind
session.init()
engine = session.engine()
assert engine.transport == "shm+gloo", engine.transport
count = int(sys.argv[1])
def once():
    array = np.ones(count, "float32")
    buffer = Buffer(array.ctypes.data, DType.FLOAT32, array.shape, array)
    engine.prepare(OperationSpec(Kind.ALLREDUCE, "t", forms([buffer]))).start([buffer], [buffer]).wait()
    assert (array == session.size()).all()
for _ in range(3):
    once()
os.write(1, json.dumps({"ready": session.rank(), "pid": os.getpid()}).encode() + b"\\n")
try:
    while True:
        once()
except HoraError as error:
    said = {"rank": session.rank(), "at": time.monotonic(), "kind": type(error).__name__, "text": str(error)}
    os.write(1, json.dumps(said).encode() + b"\\n")
"""


@pytest.mark.parametrize(("count", "victim"), [(1000, 0), (1000, 3), (4 << 20, 2), (4 << 20, 3)])
def test_a_kill_is_named_on_all_hosts_in_time(count: int, victim: int) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "HORA_TRANSPORT": "auto"}
    with tempfile.TemporaryFile("w+") as log:
        job = Hosts(("ea", "ea", "eb", "eb"), [sys.executable, "-c", DYING, str(count)], environment, log)
        try:
            words = _wait_for(log, "ready", 4, job)
            killed_at = time.monotonic()
            os.kill(job.workers[victim].pid, signal.SIGKILL)
            told = _wait_for(log, "rank", 3, job)
            job.wait(20)
        finally:
            job.close()
    assert {word["ready"] for word in words} == {0, 1, 2, 3}
    for word in told:
        assert word["kind"] == "PeerLostError" and f"rank {victim} (host e" in word["text"], word
        assert "signal 9" in word["text"] and word["at"] - killed_at < 3.0, word
    assert [w.returncode for r, w in enumerate(job.workers) if r != victim] == [0, 0, 0]


def _wait_for(log: Any, key: str, count: int, job: Hosts) -> list[dict[str, Any]]:
    import json

    deadline = time.monotonic() + 90
    while True:
        text = os.pread(log.fileno(), 1 << 20, 0).decode()
        found = [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]
        found = [word for word in found if key in word]
        if len(found) >= count:
            return found
        assert time.monotonic() < deadline and (job.poll() is None or key == "rank"), text
        threading.Event().wait(0.02)


def test_what_was_opened_is_closed() -> None:
    closed = []

    class Part:
        def close(self) -> None:
            closed.append(self)

    mover = HierarchicalMover.__new__(HierarchicalMover)
    mover._table, mover._flat = Part(), Part()  # type: ignore[assignment]
    mover.close()
    assert closed == [mover._table, mover._flat]
