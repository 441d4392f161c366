"""Meeting: how a worker finds its hub and, through it, the other workers of its generation.

Under ``hora run`` the connection is inherited. Where something else launched the workers (mpirun, srun, torchrun), the
lowest rank of the world that is being formed runs the hub in a thread and the others find its Unix socket under a name
derived from the job. Connections stay open after ``shutdown()``, so a later ``init()`` meets the same peers again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hora.config.settings import Settings
from hora.config.world import World
from hora.engine.line import Line
from hora.errors import EnvironmentUnfit, HoraError, PeerLostError, ShutDownError, StallError, UsageError
from hora.wire.door import peer_of
from hora.wire.frame import SECRET_BYTES, Channel, WireClosed, WireError, WireTimeout
from hora.wire.messages import Hello, Peer, Refused

if TYPE_CHECKING:
    from hora.engine.hub import Hub

__all__ = ["Meeting", "disconnect", "meet", "socket_path"]

_SECRET_S = 30.0
_RETRY_S = 0.01
_GRACE_S = 5.0  # the hub gives up first, because it knows who is missing


class Meeting(NamedTuple):
    """One generation of workers, met.

    Ranks count inside the generation (``peers[r].launched_rank`` is the launcher's number); ``settings`` are those of
    rank 0, which rule. ``segment_fd`` is an open descriptor that the caller owns, -1 unless ``transport`` is "shm".
    ``hub_rank`` is the rank whose process runs the hub, -1 if the launcher does: if the channel is lost, that one died.
    """

    generation: int
    rank: int
    peers: tuple[Peer, ...]
    transport: str
    settings: Settings
    channel: Line
    segment_fd: int
    hub_rank: int

    @property
    def size(self) -> int:
        return len(self.peers)


def meet(world: World, settings: Settings, members: tuple[int, ...], generation: int) -> Meeting:
    """Meet the other ``members`` (ranks of ``world``, ascending) of this generation.

    Returns once all have come. Raises StallError naming those who did not within ``settings.start_deadline_s``,
    PeerLostError if one of them has died, ShutDownError if this generation is already over, UsageError if the members
    disagree about who they are, EnvironmentUnfit if this launch or machine cannot carry them.
    """
    line = _connect(world, settings, members)
    deadline_s = settings.start_deadline_s(len(members))
    hello = Hello(generation, world.rank, world.size, os.getpid(), world.host, members, settings)
    try:
        greeting = line.greet(hello, deadline_s + _GRACE_S)
    except WireError as error:
        raise _hub_lost(world, members, error) from error
    if greeting is None:
        raise StallError(f"the hub did not answer within {deadline_s + _GRACE_S:g} s. Is its process stopped?")
    message = greeting.message
    if isinstance(message, Refused):
        raise _REFUSALS.get(message.kind, HoraError)(message.text)
    return Meeting(
        generation=generation,
        rank=message.rank,
        peers=message.peers,
        transport=message.transport,
        settings=message.settings,
        channel=line,
        segment_fd=greeting.descriptor,
        hub_rank=-1 if world.hub_fd >= 0 else 0,
    )


def disconnect(linger_s: float = 10.0) -> None:
    """Hang up on every hub and stop those this process runs; for the end of the process. Safe to call twice.

    A process that runs a hub lingers until the others have shut down too, for without it they would count as dead.
    """
    with _lock:
        lines, hubs = list(_lines.values()), list(_hubs.values())
        _lines.clear()
        _hubs.clear()
    for hub in hubs:
        hub.drain(linger_s)
    for line in lines:
        line.close()
    for hub in hubs:
        hub.close()


def socket_path(job_key: str, members: tuple[int, ...]) -> Path:
    """Where the workers of a job that Hora did not launch find their hub.

    >>> socket_path("slurm-7.0.0", (0, 1)) == socket_path("slurm-8.0.0", (0, 1))
    False
    """
    digest = hashlib.blake2b(repr((job_key, members)).encode(), digest_size=12).hexdigest()
    return Path(f"/tmp/hora-{os.getuid()}") / f"{digest}.hub"


_REFUSALS: dict[str, type[HoraError]] = {
    "stall": StallError,
    "lost": PeerLostError,
    "stale": ShutDownError,
    "usage": UsageError,
    "unfit": EnvironmentUnfit,
}

_lock = threading.Lock()
_lines: dict[tuple[int, ...], Line] = {}  # by members; under hora run one line serves all, kept under ()
_hubs: dict[tuple[int, ...], Hub] = {}


def _connect(world: World, settings: Settings, members: tuple[int, ...]) -> Line:
    """The line to the hub of these members, opened if need be."""
    if world.rank not in members:
        raise UsageError(f"rank {world.rank} cannot be part of a world of ranks {list(members)}, in which it is not.")
    key = () if world.hub_fd >= 0 else members
    with _lock:
        line = _lines.get(key)
        if line is None or (line.lost and key):
            line = _lines[key] = _inherit(world) if world.hub_fd >= 0 else _find(world, settings, members)
        return line


def _inherit(world: World) -> Line:
    os.set_inheritable(world.hub_fd, False)  # a worker's own children have no business on it
    try:
        sock = socket.socket(fileno=world.hub_fd)
    except OSError as error:
        raise EnvironmentUnfit(
            f"HORA_HUB_FD={world.hub_fd} is not an open connection to the launcher ({error}). The command must run as "
            "a child of hora run that keeps its file descriptors open."
        ) from error
    return _open(sock, host_pid=0)


def _find(world: World, settings: Settings, members: tuple[int, ...]) -> Line:
    if world.local_size != world.size:
        raise EnvironmentUnfit(
            f"{world.size} workers of {world.launcher} are on several hosts ({world.local_size} on this one), where "
            "they cannot find each other yet. Start them on one host."
        )
    path = socket_path(world.job_key, members)
    if world.rank == members[0]:
        if (old := _hubs.pop(members, None)) is not None:
            old.close()
        from hora.engine.hub import Hub  # most workers never run one

        hub = _hubs[members] = Hub(world.size, host=world.host)
        try:
            hub.listen(path, len(members))
        except OSError as error:
            raise EnvironmentUnfit(f"the workers cannot meet at {path}: {error}") from error
    deadline = time.monotonic() + settings.start_deadline_s(len(members))
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(str(path))
            pid, uid = peer_of(sock)
            if uid != os.getuid():
                raise EnvironmentUnfit(f"{path} belongs to another user (uid {uid}); remove it.")
            return _open(sock, host_pid=0 if pid == os.getpid() else pid)
        except (FileNotFoundError, ConnectionRefusedError, WireClosed) as error:
            sock.close()
            if time.monotonic() >= deadline:
                raise StallError(
                    f"rank {members[0]} did not call init() within {settings.start_deadline_s(len(members)):g} s; rank "
                    f"{world.rank} did and cannot start without it.\nLook at what rank {members[0]} did instead; raise "
                    "HORA_START_TIMEOUT if starting only takes longer."
                ) from error
            time.sleep(_RETRY_S)


def _open(sock: socket.socket, host_pid: int) -> Line:
    """Take the job's secret, which comes first, and begin to speak."""
    sock.settimeout(_SECRET_S)
    secret = b""
    try:
        while len(secret) < SECRET_BYTES:
            part = sock.recv(SECRET_BYTES - len(secret))
            if not part:
                raise WireClosed("the hub closed the connection before it began")
            secret += part
    except TimeoutError as error:
        raise WireTimeout(f"the hub said nothing for {_SECRET_S:g} s") from error
    except ConnectionError as error:
        raise WireClosed(str(error)) from error
    return Line(Channel(sock, secret, "worker"), host_pid=host_pid)


def _hub_lost(world: World, members: tuple[int, ...], error: WireError) -> PeerLostError:
    if world.hub_fd >= 0:
        return PeerLostError(f"the launcher is gone ({error}), so this worker cannot go on. End it.", host=world.host)
    text = f"rank {members[0]}, which the others meet at, is gone ({error}). Look at its output for the reason."
    return PeerLostError(text, rank=0, host=world.host, status=str(error))


with contextlib.suppress(AttributeError):  # a forked child must not speak on its parent's lines

    def _after_fork() -> None:
        _lines.clear()
        _hubs.clear()

    os.register_at_fork(after_in_child=_after_fork)
