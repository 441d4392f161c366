"""A crew of ranks in one process: each has its own place in one real segment and its own thread.

The core cannot tell threads from processes, so this is the real thing at a hundredth of the price. What it does not
show is death, which ``tests/chaos`` kills real processes for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hora.config.settings import Settings
from hora.engine.request import Request, Segment
from hora.engine.table import TableBackend, TableTicket
from hora.transport import shm
from hora.transport.base import Buffer, DType, Kind, ReduceOp
from hora.wire.messages import Peer

DEADLINE_S = 30.0


class Rank:
    """One rank, with the few calls that tests make of it."""

    def __init__(self, backend: TableBackend, rank: int, size: int) -> None:
        self.backend, self.rank, self.size = backend, rank, size
        self.everyone = tuple(range(size))
        self._requests: dict[Any, Request] = {}

    def submit(
        self,
        kind: Kind,
        name: str,
        arrays: Sequence[np.ndarray[Any, Any]],
        outputs: Sequence[np.ndarray[Any, Any]] | None = None,
        members: tuple[int, ...] | None = None,
        **more: Any,
    ) -> TableTicket:
        segments = tuple(Segment(DType[a.dtype.name.upper()], a.shape) for a in arrays)
        key = (kind, name, segments, members, tuple(more.items()))
        if key not in self._requests:
            self._requests[key] = Request(kind, name, segments, members or self.everyone, line="here:1", **more)
        default = arrays if kind in (Kind.ALLREDUCE, Kind.BROADCAST) else []
        return self.backend.submit(
            self._requests[key], _buffers(arrays), _buffers(default if outputs is None else outputs)
        )

    def allreduce(
        self, array: np.ndarray[Any, Any], name: str, op: ReduceOp = ReduceOp.SUM, **more: Any
    ) -> TableTicket:
        return self.submit(Kind.ALLREDUCE, name, [array], op=op, **more)

    def barrier(self, name: str = "barrier", members: tuple[int, ...] | None = None) -> None:
        self.backend.wait(self.submit(Kind.BARRIER, name, [], members=members))


def _buffers(arrays: Sequence[np.ndarray[Any, Any]]) -> list[Buffer]:
    return [Buffer(a.ctypes.data, DType[a.dtype.name.upper()], a.shape, a) for a in arrays]


def run(size: int, body: Callable[[Rank], Any], settings: Settings | None = None) -> list[Any]:
    """Run ``body`` on every rank; results by rank, or the first failure. Nothing outlives its deadline."""
    import os

    settings = settings or Settings()
    segment = shm.create_segment(size, 1, settings)
    peers = [Peer(r, r, os.getpid(), "here") for r in range(size)]
    backends = [TableBackend(segment.fd, r, peers, settings) for r in range(size)]
    segment.close()
    results: list[Any] = [None] * size
    errors: list[BaseException | None] = [None] * size

    def one(rank: int) -> None:
        try:
            results[rank] = body(Rank(backends[rank], rank, size))
        except BaseException as error:
            errors[rank] = error

    threads = [threading.Thread(target=one, args=(r,), daemon=True) for r in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    hanging = [r for r, thread in enumerate(threads) if thread.is_alive()]
    assert not hanging, f"ranks {hanging} hang; the others: {errors} {results}"
    for backend in backends:
        backend.leave()
    for backend in backends:
        backend.close()
    for error in errors:
        if error is not None:
            raise error
    return results
