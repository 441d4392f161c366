"""A crew of ranks in one process: each has its own place in one real segment and its own thread.

The core cannot tell threads from processes, so this is the real thing at a hundredth of the price. What it does not
show is death, which ``tests/chaos`` kills real processes for.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hora.config.settings import Settings
from hora.engine.backend import Operation, OperationOutcome, UnderWay
from hora.engine.request import Request, TensorSpec
from hora.engine.table import TableBackend
from hora.transport import shm
from hora.types import Buffer, DType, Kind, ReduceOp, Reduction
from hora.wire.messages import Peer

DEADLINE_S = 30.0
LOCK_AT, NEXT_STAMP_AT = 256, 512  # struct header of native/core.h
AT_ENTRIES, ENTRY_BYTES, ROUND_AT = 120, 128, 64  # there, there, and in struct entry


class Crew:
    """Backends of several ranks, without threads; and the memory they share, to look at and to spoil."""

    def __init__(self, size: int, settings: Settings | None = None) -> None:
        settings = settings or Settings()
        segment = shm.create_segment(size, 1, settings)
        self.memory = mmap.mmap(segment.fd, 0)
        peers = [Peer(r, r, os.getpid(), "here") for r in range(size)]
        self.backends = [TableBackend(segment.fd, r, peers, settings) for r in range(size)]
        self.ranks = [Rank(backend, r, size, self.memory) for r, backend in enumerate(self.backends)]
        segment.close()

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for backend in self.backends:
            backend.leave()
        for backend in self.backends:
            backend.close()
        self.memory.close()


class Rank:
    """One rank, with the few calls that tests make of it."""

    def __init__(self, backend: TableBackend, rank: int, size: int, memory: mmap.mmap) -> None:
        self.backend, self.rank, self.size, self.memory = backend, rank, size, memory
        self.everyone = tuple(range(size))
        self.operations: dict[Any, Operation] = {}

    def submit(
        self,
        kind: Kind,
        name: str,
        arrays: Sequence[np.ndarray[Any, Any]],
        outputs: Sequence[np.ndarray[Any, Any]] | None = None,
        members: tuple[int, ...] | None = None,
        **more: Any,
    ) -> UnderWay[OperationOutcome]:
        segments = tuple(TensorSpec(DType[a.dtype.name.upper()], a.shape) for a in arrays)
        key = (kind, name, segments, members, tuple(more.items()))
        if key not in self.operations:
            how = Reduction(more.pop("op", ReduceOp.SUM), more.pop("prescale", 1.0), more.pop("postscale", 1.0))
            request = Request(kind, name, segments, members or self.everyone, how, line="here:1", **more)
            self.operations[key] = self.backend.prepare(request)
        default = arrays if kind in (Kind.ALLREDUCE, Kind.BROADCAST) else []
        return self.operations[key].start(_buffers(arrays), _buffers(default if outputs is None else outputs))

    def allreduce(
        self, array: np.ndarray[Any, Any], name: str, op: ReduceOp = ReduceOp.SUM, **more: Any
    ) -> UnderWay[OperationOutcome]:
        return self.submit(Kind.ALLREDUCE, name, [array], op=op, **more)

    def barrier(self, name: str = "barrier", members: tuple[int, ...] | None = None) -> None:
        self.submit(Kind.BARRIER, name, [], members=members).wait()

    def hold_lock(self) -> None:
        """As if this rank had been stopped where it holds the table's lock, which is free now."""
        assert self.memory[LOCK_AT : LOCK_AT + 4] == bytes(4)
        self.memory[LOCK_AT : LOCK_AT + 4] = struct.pack("<I", self.rank + 1)
        assert self.backend._lib.holder(self.backend._core) == self.rank

    def let_go_of_lock(self) -> None:
        self.memory[LOCK_AT : LOCK_AT + 4] = bytes(4)

    def set_round(self, round: int) -> None:
        """As if the first operation that this crew knew had been carried out so often. Nothing may be in flight."""
        (entries,) = struct.unpack_from("<Q", self.memory, AT_ENTRIES)
        struct.pack_into("<Q", self.memory, entries + ROUND_AT, round)

    def until_joined(self, rank: int) -> None:
        """Until that rank is inside join()."""
        until(lambda: any(name == "join" for name, _ in self.backend.snapshot().ranks[rank].waiting_on))


def until(condition: Callable[[], bool]) -> None:
    """Until it is true, and not for ever."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.001)


def _buffers(arrays: Sequence[np.ndarray[Any, Any]]) -> list[Buffer]:
    return [Buffer(a.ctypes.data, DType[a.dtype.name.upper()], a.shape, a) for a in arrays]


def run(
    size: int, body: Callable[[Rank], Any], settings: Settings | None = None, deadline_s: float = DEADLINE_S
) -> list[Any]:
    """Run ``body`` on every rank; results by rank, or the first failure. Nothing outlives its deadline."""
    crew = Crew(size, settings)
    results: list[Any] = [None] * size
    errors: list[BaseException | None] = [None] * size

    def one(rank: int) -> None:
        try:
            results[rank] = body(crew.ranks[rank])
        except BaseException as error:
            errors[rank] = error

    threads = [threading.Thread(target=one, args=(r,), daemon=True) for r in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(deadline_s)
    hanging = [r for r, thread in enumerate(threads) if thread.is_alive()]
    assert not hanging, f"ranks {hanging} hang; the others: {errors} {results}"
    crew.__exit__()
    for error in errors:
        if error is not None:
            raise error
    return results
