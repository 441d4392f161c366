"""The table in shared memory of one host's workers, for a generation that is on several hosts.

The first worker of the host makes the memory and says in the hub's store where it is; the others open it through
``/proc`` when they first need it. What is done in it are operations of the C core under names that say all about them,
so every worker of the host must ask for the same ones, and may do so in any order.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from hora.config.settings import Settings
from hora.engine.request import Request, Segment
from hora.engine.table import Immediate, TableBackend, TableTicket
from hora.errors import EnvironmentUnfit, HoraError, HorovodInternalError
from hora.transport import shm
from hora.transport.base import Buffer, DType, KeyValue, Kind, ReduceOp
from hora.wire.messages import Peer

__all__ = ["INLINE_BYTES", "HostTable", "Task", "make_segment", "open_segment", "refusal", "show_segment"]

INLINE_BYTES = 8192  # native/core.h: what travels with an arrival, so that it takes one call and no waiting for data
_CACHED = 1024
_NONE = b"none: "


class Task(NamedTuple):
    """An operation among ``places`` of the table. Those that are alike can be under way at once in different slots."""

    kind: Kind
    places: tuple[int, ...]
    dtype: DType
    elements: int
    slot: int = 0
    op: ReduceOp = ReduceOp.SUM
    prescale: float = 1.0
    postscale: float = 1.0
    root: int = -1


class HostTable:
    """This worker's access to it. Places count the host's workers (``peers``, of which ``rank`` is one) from 0."""

    def __init__(self, generation: int, rank: int, peers: Sequence[Peer], store: KeyValue, settings: Settings) -> None:
        self._generation, self._store = generation, store
        self._peers = [Peer(place, peer.launched_rank, peer.pid, peer.host) for place, peer in enumerate(peers)]
        self._place = [peer.rank for peer in peers].index(rank)
        self._key = f"shm/{peers[0].rank}"
        # Nothing is fused, so that a chunk is finished before the next is begun. Nobody spins: networks take longer.
        self._settings = msgspec.structs.replace(
            settings, fusion_bytes=0, cycle_time_ms=0.0, spin_us=max(0, settings.spin_us), strict=False
        )
        self._lock = threading.Lock()  # guards what abort, from another thread, must not meet half done
        self._backend: TableBackend | None = None
        self._segment: shm.Segment | None = None
        self._over = ""
        self._requests: dict[Task, Request] = {}
        self._immediate: dict[Task, Immediate] = {}
        if len(peers) > 1 and self._place == 0:
            self._segment, shown = make_segment(len(peers), generation, settings)
            store.set(self._key, shown)
            if self._segment is None:
                raise EnvironmentUnfit(refusal(shown))

    def submit(self, task: Task, source: Buffer, target: Buffer) -> TableTicket:
        return self._open().submit(self._request(task), [source], [target])

    def wait(self, ticket: TableTicket) -> None:
        self._open().wait(ticket)

    def at_once(self, task: Task) -> Immediate:
        """What carries this out in place in one call, given an address."""
        known = self._immediate.get(task)
        if known is None or self._over:
            if len(self._immediate) >= _CACHED:
                self._immediate.clear()
            known = self._immediate[task] = self._open().immediate(self._request(task))
        return known

    def gather(self, task: Task, source: Buffer) -> Any:
        """What these places bring, in a row, in memory of its own."""
        backend = self._open()
        return backend.wait(backend.submit(self._request(task), [source], [])).memory[0]

    def abort(self, reason: str) -> None:
        """Make every wait in the table raise, on all workers of this host. For any thread."""
        with self._lock:
            self._over = self._over or reason
            if self._backend is not None:
                self._backend.abort(reason)

    def close(self) -> None:
        with self._lock:
            backend, self._backend = self._backend, None
            segment, self._segment = self._segment, None
            self._over = self._over or "it was closed"
        self._immediate.clear()
        self._requests.clear()
        if backend is not None:
            backend.leave()
            backend.close()
        if segment is not None:
            segment.close()

    def _open(self) -> TableBackend:
        backend = self._backend
        if self._over or backend is None:
            if self._over:
                raise HorovodInternalError(f"shared memory can no longer be used: {self._over}")
            fd = self._find()
            try:
                backend = TableBackend(fd, self._place, self._peers, self._settings, self._generation)
            finally:
                os.close(fd)
            self._keep(backend)
        return backend

    def _keep(self, backend: TableBackend) -> None:
        with self._lock:
            self._backend = backend
            if self._over:  # meanwhile
                backend.abort(self._over)

    def _find(self) -> int:
        if self._segment is not None:
            return os.dup(self._segment.fd)
        return open_segment(self._store.get(self._key, self._settings.start_timeout_s), self._peers[0])

    def _request(self, task: Task) -> Request:
        known = self._requests.get(task)
        if known is None:
            if len(self._requests) >= _CACHED:
                self._requests.clear()
            kind, places, dtype, elements, slot, op, prescale, postscale, root = task
            count = "any" if kind is Kind.ALLGATHER else elements  # there each brings as much as it has
            name = f"{kind.name}.{dtype.name}.{count}.{slot}.{op.name}.{prescale}.{postscale}.{root}"
            segments = (Segment(dtype, (elements,)),)
            known = Request(kind, name, segments, places, op, root, prescale, postscale)
            self._requests[task] = known
        return known


def make_segment(
    size: int, generation: int, settings: Settings, host_of: Sequence[int] = (), host: int = 0
) -> tuple[shm.Segment | None, bytes]:
    """Memory for the workers of this host, and what to tell them of it: if there is none, why.

    With ``host_of`` the workers are on several hosts, of which this is number ``host``.
    """
    try:
        segment = shm.create_segment(size, generation, settings, host_of, host)
    except (OSError, HoraError) as error:
        return None, _NONE + str(error).encode()
    return segment, show_segment(segment)


def refusal(where: bytes | None) -> str:
    """Why there is no memory, if that is what was told.

    >>> refusal(b"42 7"), refusal(b"none: File too large")
    ('', 'File too large')
    """
    return where.removeprefix(_NONE).decode() if where is not None and where.startswith(_NONE) else ""


def show_segment(segment: shm.Segment) -> bytes:
    """Where others of this host find it, as long as it is open here; for ``open_segment``."""
    return f"{os.getpid()} {segment.fd}".encode()


def open_segment(where: bytes | None, maker: Peer) -> int:
    """A descriptor of the memory that another worker of this host has made."""
    if where is None:
        raise HorovodInternalError(f"{maker} did not share its memory in time")
    if reason := refusal(where):
        raise EnvironmentUnfit(f"the workers of {maker.host} cannot share memory: {reason}")
    pid, fd = where.decode().split()
    try:
        return os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise EnvironmentUnfit(
            f"the workers of {maker.host} cannot share memory: /proc/{pid}/fd/{fd} cannot be opened ({error}). They "
            "must be processes of one user in one container; or set HORA_TRANSPORT=gloo."
        ) from error
