"""What the workers of ``talk_crew`` do. Each body gets a started backend and its meeting, and returns its report."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tests.engine.simulate import buffer_of

from hora.config.settings import Settings
from hora.config.world import World
from hora.engine import message_backend
from hora.engine.backend import OperationOutcome, UnderWay
from hora.engine.meet import Meeting, disconnect, meet
from hora.engine.message_backend import MessageBackend
from hora.engine.request import Request, TensorSpec
from hora.errors import HoraError, HorovodInternalError, PeerLostError
from hora.transport.arithmetic import adasum, reduce_parts
from hora.types import Buffer, DType, Kind, ReduceOp, Reduction
from hora.wire.messages import Bye, Farewell

Report = dict[str, Any]


def everyone(meeting: Meeting) -> tuple[int, ...]:
    return tuple(range(meeting.size))


def allreduce(
    backend: MessageBackend,
    name: str,
    array: np.ndarray[Any, Any],
    members: tuple[int, ...],
    *,
    dtype: DType | None = None,
    op: ReduceOp = ReduceOp.SUM,
    prescale: float = 1.0,
    postscale: float = 1.0,
) -> UnderWay[OperationOutcome]:
    buffer = buffer_of(array) if dtype is None else Buffer(array.ctypes.data, dtype, array.shape, array)
    segment = TensorSpec(buffer.dtype, buffer.shape)
    request = Request(
        Kind.ALLREDUCE,
        f"allreduce.{name}",
        (segment,),
        members,
        Reduction(op, prescale, postscale),
    )
    return backend.prepare(request).start([buffer], [buffer])


def sample(dtype: DType, rank: int, count: int) -> np.ndarray[Any, Any]:
    random = np.random.default_rng(1000 * int(dtype) + rank)
    if dtype is DType.BFLOAT16:
        return (random.normal(size=count).astype("float32").view("uint32") >> 16).astype("uint16")
    if dtype is DType.BOOL:
        return random.integers(0, 2, count).astype("bool")
    if dtype.numpy.startswith("float"):
        return random.normal(size=count).astype(dtype.numpy)
    return random.integers(-100 if dtype.numpy.startswith("int") else 0, 100, count).astype(dtype.numpy)


def arithmetic(backend: MessageBackend, meeting: Meeting) -> Report:
    """Every type and operation, small and large, against the arithmetic done here on everyone's data."""
    wrong = []
    tickets = []
    for dtype in DType:
        for op in (ReduceOp.SUM, ReduceOp.AVERAGE, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT):
            for count in (0, 5, 9001):
                array = sample(dtype, meeting.rank, count)
                name = f"{dtype.name}.{op.name}.{count}"
                ticket = allreduce(
                    backend, name, array, everyone(meeting), dtype=dtype, op=op, prescale=0.5, postscale=3.0
                )
                tickets.append((name, dtype, op, count, array, ticket))
    if meeting.rank % 2:
        time.sleep(0.01)
    for name, dtype, op, count, array, ticket in reversed(tickets):
        ticket.wait()
        parts = [sample(dtype, rank, count) for rank in everyone(meeting)]
        expected = reduce_parts(parts, dtype, op, 0.5, 3.0, meeting.size)
        if not np.array_equal(array.view("uint8"), expected.view("uint8")):
            wrong.append(name)
    return {"wrong": wrong, "checked": len(tickets)}


def collectives(backend: MessageBackend, meeting: Meeting) -> Report:
    """Allgather, broadcast, alltoall, reducescatter, groups, Adasum, barrier, a process set."""
    rank, size, members = meeting.rank, meeting.size, everyone(meeting)
    report: Report = {}
    for name, rows in (("even", 2), ("uneven", rank + 1), ("skewed", 5000 if rank == 1 else 0)):
        mine = np.full((rows, 3), rank, "int16")
        request = Request(Kind.ALLGATHER, f"allgather.{name}", (TensorSpec(DType.INT16, mine.shape),), members)
        outcome = backend.prepare(request).start([buffer_of(mine)], []).wait()
        report[f"allgather {name}"] = np.frombuffer(outcome.memory[0], "int16").reshape(-1, 3)[:, 0].tolist()[:20]
        report[f"received {name}"] = outcome.received
    mine = np.arange(4, dtype="float64") * (rank + 1)
    request = Request(Kind.BROADCAST, "broadcast.x", (TensorSpec(DType.FLOAT64, (4,)),), members, root=1)
    backend.prepare(request).start([buffer_of(mine)], [buffer_of(mine)]).wait()
    report["broadcast"] = mine.tolist()
    splits = tuple(range(size))
    mine = np.arange(sum(splits), dtype="int32") + 100 * rank
    request = Request(Kind.ALLTOALL, "alltoall.x", (TensorSpec(DType.INT32, mine.shape),), members, splits=splits)
    outcome = backend.prepare(request).start([buffer_of(mine)], []).wait()
    report["alltoall"] = np.frombuffer(outcome.memory[0], "int32").tolist()
    rows = 2 * size + 1
    mine = np.arange(rows * 2, dtype="float32").reshape(rows, 2)
    output = np.empty((3 if rank == 0 else 2, 2), "float32")
    request = Request(
        Kind.REDUCESCATTER, "rs.x", (TensorSpec(DType.FLOAT32, mine.shape),), members, how=Reduction(ReduceOp.AVERAGE)
    )
    backend.prepare(request).start([buffer_of(mine)], [buffer_of(output)]).wait()
    report["reducescatter"] = output[:, 0].tolist()
    a, b = np.full(3, rank, "float32"), np.full(5000, rank, "float64")
    request = Request(
        Kind.ALLREDUCE,
        "g",
        (TensorSpec(DType.FLOAT32, (3,)), TensorSpec(DType.FLOAT64, (5000,))),
        members,
        grouped=True,
    )
    buffers = [buffer_of(a), buffer_of(b)]
    backend.prepare(request).start(buffers, buffers).wait()
    report["group"] = [a[0].item(), b[-1].item()]
    backend.prepare(Request(Kind.BARRIER, "barrier.x", (), members)).start([], []).wait()
    pair = (0, size - 1)
    if rank in pair:
        array = np.full(4, rank + 1.0)
        allreduce(backend, "pair", array, pair, op=ReduceOp.ADASUM).wait()
        expected = adasum([np.full(4, r + 1.0) for r in pair], DType.FLOAT64, 1.0, 1.0)
        report["adasum"] = bool(np.array_equal(array, expected))
    return report


def errors(backend: MessageBackend, meeting: Meeting) -> Report:
    """A mismatch fails alike on all ranks and disturbs nothing else; Adasum refuses a size that is no power of two."""
    rank, members = meeting.rank, everyone(meeting)
    good = np.full(3, 1.0)
    other = allreduce(backend, "good", good, members)
    texts = []
    for name, array, op in (
        ("bad", np.zeros(3 + (rank == 1)), ReduceOp.SUM),
        ("odd", np.zeros(3), ReduceOp.ADASUM if meeting.size == 3 else ReduceOp.SUM),
    ):
        try:
            allreduce(backend, name, array, members, op=op).wait()
        except HorovodInternalError as error:
            texts.append(f"{type(error).__name__}: {error}")
    other.wait()
    return {"texts": texts, "good": good.tolist()}


def joins(backend: MessageBackend, meeting: Meeting) -> Report:
    """Rank r does r steps, then joins."""
    sums = []
    for step in range(meeting.rank):
        array = np.ones(2)
        allreduce(backend, f"step{step}", array, everyone(meeting)).wait()
        sums.append(array[0].item())
    last = backend.join(average_active=False)
    again = np.ones(2)
    allreduce(backend, "after", again, everyone(meeting)).wait()
    return {"sums": sums, "last": last, "after": again[0].item()}


def death(backend: MessageBackend, meeting: Meeting) -> Report:
    """The last rank is killed in the middle of things; the others are told which, and exit as usual."""
    threading.Thread(target=lambda: _die(meeting, backend), daemon=True).start()
    began = time.monotonic()
    try:
        while True:
            array = np.ones(500_000)
            name = "big"
            allreduce(backend, name, array, everyone(meeting)).wait()
            began = time.monotonic()
    except PeerLostError as error:
        took_s = time.monotonic() - began
        return {"text": str(error), "rank": error.rank, "pid": error.pid, "status": error.status, "took_s": took_s}


def _die(meeting: Meeting, backend: MessageBackend) -> None:
    if meeting.rank == meeting.size - 1:
        time.sleep(random.uniform(0.0, 0.4))  # from before anyone has connected to the midst of things
        os.kill(os.getpid(), signal.SIGKILL)


def looking(backend: MessageBackend, meeting: Meeting) -> Report:
    """Rank 0 waits for what rank 1 does not submit, sees that, looks at rank 1's stack, and fails the wait."""
    if meeting.rank == 0:
        ticket = allreduce(backend, "lonely", np.ones(2), (0, 1))
        threading.Thread(target=_wait_quietly, args=(backend, ticket), daemon=True).start()
        deadline = time.monotonic() + 10
        pending = None
        while pending is None and time.monotonic() < deadline:
            pending = next((p for p in backend.snapshot().pending if p.name == "allreduce.lonely"), None)
        assert pending is not None
        stack = backend.python_stack(1, 5.0)
        backend.fail(pending, "stall", "too slow")
        text = _wait_quietly(backend, ticket)
        backend.prepare(Request(Kind.BARRIER, "barrier.end", (), (0, 1))).start([], []).wait()
        return {
            "missing": pending.missing,
            "name": pending.name,
            "in stack": "talk_bodies" in stack and "_wait_quietly" not in stack,
            "text": text,
        }
    backend.prepare(Request(Kind.BARRIER, "barrier.end", (), (0, 1))).start([], []).wait()
    return {}


def _wait_quietly(backend: MessageBackend, ticket: UnderWay[OperationOutcome]) -> str:
    try:
        ticket.wait()
    except HoraError as error:
        return f"{type(error).__name__}: {error}"
    return "done"


def given_up(backend: MessageBackend, meeting: Meeting) -> Report:
    """Rank 1 is stopped, given up and continued: both hear of it, and neither waits for the other."""
    if meeting.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
        return {"text": _try_quietly(backend, "after")}
    pid = meeting.peers[1].pid
    deadline = time.monotonic() + 20
    while _state(pid) != "T" and time.monotonic() < deadline:
        time.sleep(0.01)
    try:
        ticket = allreduce(backend, "before", np.ones(2), (0, 1))
        backend.give_up(1, "it has not answered for 600 s")
        return {"text": _wait_quietly(backend, ticket)}
    finally:
        os.kill(pid, signal.SIGCONT)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _try_quietly(backend: MessageBackend, name: str) -> str:
    """Submitting may fail as well as waiting."""
    try:
        return _wait_quietly(backend, allreduce(backend, name, np.ones(2), (0, 1)))
    except HoraError as error:
        return f"{type(error).__name__}: {error}"


def early_leave(backend: MessageBackend, meeting: Meeting) -> Report:
    """Rank 1 shuts down while the others still want it."""
    if meeting.rank == 1:
        return {}
    return {"text": _wait_quietly(backend, allreduce(backend, "late", np.ones(2), everyone(meeting)))}


def steps(backend: MessageBackend, meeting: Meeting) -> Report:
    """Many small named operations, for the cache; and how fast."""
    began = time.monotonic()
    wrong = 0
    for _ in range(200):
        arrays = [np.full(10, float(meeting.rank)) for _ in range(5)]
        tickets = [allreduce(backend, f"g{i}", array, everyone(meeting)) for i, array in enumerate(arrays)]
        for ticket, array in zip(tickets, arrays, strict=True):
            ticket.wait()
            wrong += array[0] != sum(everyone(meeting))
    return {"wrong": int(wrong), "us_per_op": (time.monotonic() - began) * 1e6 / 1000}


BODIES: dict[str, Callable[[MessageBackend, Meeting], Report]] = {
    body.__name__: body
    for body in (arithmetic, collectives, errors, joins, death, looking, given_up, early_leave, steps)
}


def main() -> None:
    name, rank, size, fd, settings, place = sys.argv[1:]
    standard = {
        "rank": int(rank),
        "size": int(size),
        "local_rank": int(rank),
        "local_size": int(size),
        "hub_fd": int(fd) if fd.isdigit() else -1,
        "launcher": "hora" if fd.isdigit() else "torchrun",
        "job_key": fd,
    }
    world = msgspec.convert({**standard, **json.loads(place)}, World)
    report: Report = {}
    for generation, body in enumerate(name.split(",")):  # several bodies are several generations
        members = tuple(range(world.size))
        if body == "evens":
            members = tuple(r for r in members if r % 2 == world.rank % 2)
        try:
            meeting = meet(world, Settings(**json.loads(settings)), members, generation)
        except HoraError as error:
            report = {"error": f"{type(error).__name__}: {error}"}
            break
        report |= {
            "rank": meeting.rank,
            "peers": [peer.launched_rank for peer in meeting.peers],
            "addresses": [peer.address for peer in meeting.peers],
            "transport": meeting.transport,
        }
        if body in BODIES:
            backend = message_backend.start(meeting)
            report |= BODIES[body](backend, meeting)
            backend.leave()
            backend.close()
        else:
            _meet_only(body, meeting)
    disconnect()
    print(json.dumps(report), flush=True)


def _meet_only(body: str, meeting: Meeting) -> None:
    """Bodies that need no transport: leave in good order, or see the first rank killed."""
    lost = threading.Event()
    left = threading.Event()
    meeting.channel.subscribe(
        lambda message: left.set() if isinstance(message, Farewell) else None, lambda _: lost.set()
    )
    if body == "hub_dies":
        if meeting.rank == meeting.hub_rank:
            os.kill(os.getpid(), signal.SIGKILL)
        assert lost.wait(5)
        return
    meeting.channel.send(Bye(meeting.generation))
    assert left.wait(5)
    meeting.channel.unsubscribe()


if __name__ == "__main__":
    main()
