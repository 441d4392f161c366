"""The table in shared memory of one host's workers, for a generation that is on several hosts.

The first worker of the host makes the memory and says in the hub's store where it is; the others open it through
``/proc`` when they first need it. What is done in it are operations of the C core under names that say all about them,
so every worker of the host must ask for the same ones, and may do so in any order.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from hora.config.settings import Settings
from hora.engine.backend import Operation
from hora.engine.meet import Meeting
from hora.engine.request import Request, TensorSpec
from hora.engine.table import TableBackend
from hora.errors import EnvironmentUnfit, HoraError, HorovodInternalError, PeerLostError
from hora.transport import shm
from hora.transport.base import KeyValue
from hora.types import DType, Kind, ReduceOp, Reduction
from hora.wire.messages import Peer

__all__ = [
    "INLINE_BYTES",
    "HostOperation",
    "HostTable",
    "make_segment",
    "open_segment",
    "refusal",
    "share_segment",
    "shared_by",
    "show_segment",
]

INLINE_BYTES = 8192  # core.h: INLINE_BYTES; travel with an arrival, so that it takes one call and no waiting
_CACHED = 1024
_NONE = b"none: "


class HostOperation(NamedTuple):
    """An operation among ``places`` of the table. Those that are alike can be under way at once in different slots."""

    kind: Kind
    places: tuple[int, ...]
    dtype: DType
    elements: int
    slot: int = 0
    how: Reduction = Reduction(ReduceOp.SUM)
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
        self._prepared: dict[HostOperation, Operation] = {}
        if len(peers) > 1 and self._place == 0:
            self._segment, shown = make_segment(len(peers), generation, settings)
            store.set(self._key, shown)
            if self._segment is None:
                raise EnvironmentUnfit(refusal(shown))

    def prepare(self, task: HostOperation) -> Operation:
        """What carries this out. All places ask for the same tasks, so each is made ready once."""
        known = self._prepared.get(task)
        if known is None or self._over:
            backend = self._open()
            if len(self._prepared) >= _CACHED:
                self._prepared.clear()
            known = self._prepared[task] = backend.prepare(_request(task))
        return known

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
        self._prepared.clear()
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


def _request(task: HostOperation) -> Request:
    """The name says all about it, but how much each place brings to an allgather."""
    count = "any" if task.kind is Kind.ALLGATHER else task.elements
    op, prescale, postscale, _ = task.how
    name = f"{task.kind.name}.{task.dtype.name}.{count}.{task.slot}.{op.name}.{prescale}.{postscale}.{task.root}"
    return Request(task.kind, name, (TensorSpec(task.dtype, (task.elements,)),), task.places, task.how, task.root)


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


def shared_by(meeting: Meeting, key: str, maker: Peer) -> bytes | None:
    """What the maker of a host's memory has told of it under ``key``; None if it has not in time. Raises PeerLostError
    if a worker dies meanwhile."""
    line = meeting.channel
    told = line.store_get(
        meeting.generation, key, meeting.settings.start_timeout_s, lambda: line.death() is not None
    )  # fmt: skip
    if told is None and (died := line.death()) is not None:
        peer = meeting.peers[died.rank]
        text = f"{peer} died while {maker} made its host's memory: {died.status}"
        raise PeerLostError(text, rank=died.rank, host=peer.host, pid=peer.pid, status=died.status)
    return told


def share_segment(meeting: Meeting) -> tuple[Meeting, shm.Segment | None]:
    """The memory of a host whose hub is on another one: the first rank makes it.

    Returns the meeting with a descriptor of it, or with Gloo, on all ranks, if it cannot be made; and what was made
    here.
    """
    line, generation, settings = meeting.channel, meeting.generation, meeting.settings
    made = None
    if meeting.rank == 0:
        made, where = make_segment(meeting.size, generation, settings)
        line.store_set(generation, "shm", where)
    else:
        told = shared_by(meeting, "shm", meeting.peers[0])
        where = b"" if told is None else told
    if reason := refusal(where):
        if settings.transport == "shm":
            raise EnvironmentUnfit(f"shared memory was asked for (transport 'shm') but cannot be had: {reason}")
        return meeting._replace(transport="gloo", unshared=reason), None
    fd = os.dup(made.fd) if made is not None else open_segment(where or None, meeting.peers[0])
    return meeting._replace(segment_fd=fd), made


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
        if not os.path.exists(f"/proc/{pid}"):
            text = f"{maker} died before the others of its host could open its memory"
            raise PeerLostError(text, rank=maker.rank, host=maker.host, pid=maker.pid, status="it died") from None
        raise EnvironmentUnfit(
            f"the workers of {maker.host} cannot share memory: /proc/{pid}/fd/{fd} cannot be opened ({error}). They "
            "must be processes of one user in one container; or set HORA_TRANSPORT=gloo."
        ) from error
