"""Meeting: how a worker finds its hub and, through it, the other workers of its generation.

There are four ways to the hub, tried in this order:

1. Under ``hora run`` on one host the connection is inherited.
2. On several hosts the launcher hands over the hub's addresses and the job's secret.
3. Where something else launched the workers (mpirun, srun, torchrun), the lowest rank of the world that is being formed
   runs the hub in a thread; on one host the others find its Unix socket under a name derived from the job.
4. On several hosts they discover it by what their launcher offers (``engine.hub_discovery``).

Connections stay open after ``shutdown()``, so a later ``init()`` meets the same peers again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hora.config import env
from hora.config.settings import Settings
from hora.config.world import World
from hora.engine.choice import has_fabric
from hora.engine.hub_address import HubAddress, address_file
from hora.engine.hub_connection import HubConnection
from hora.engine.hub_discovery import FileDiscovery, HubDiscovery, addresses_of, discoveries
from hora.errors import EnvironmentUnfit, HoraError, PeerLostError, ShutDownError, StallError, UsageError
from hora.transport import shm
from hora.wire.addresses import join
from hora.wire.frame import SECRET_BYTES, Channel, WireClosed, WireError, WireTimeout
from hora.wire.listen import ip_of, listen_tcp, peer_of
from hora.wire.messages import Hello, Peer, Refused, Standby
from hora.wire.reach import Unreachable, reach

if TYPE_CHECKING:
    from hora.engine.hub import Hub

__all__ = ["Meeting", "disconnect", "meet", "socket_path"]

_SECRET_S = 30.0
_RETRY_S = 0.01
_LOOK_S = 0.05  # between looks at a directory that may be on a file server
_REACH_S = 10.0
_FOR_EVER_S = 1e9
_GRACE_S = 5.0  # the hub gives up first, because it knows who is missing


class Meeting(NamedTuple):
    """One generation of workers, met.

    Ranks count inside the generation (``peers[r].launched_rank`` is the launcher's number); ``settings`` are those of
    rank 0, which rule. ``segment_fd`` is an open descriptor that the caller owns, -1 if none came: only shared memory
    has one, and only if the hub is on this host.
    ``unshared`` says why it is not shared memory, if somebody might have expected that.
    ``hub_rank`` is the rank whose process runs the hub, -1 if the launcher does: if the channel is lost, that one died.
    """

    generation: int
    rank: int
    peers: tuple[Peer, ...]
    transport: str
    settings: Settings
    channel: HubConnection
    segment_fd: int
    hub_rank: int
    unshared: str = ""

    @property
    def size(self) -> int:
        return len(self.peers)


def meet(
    world: World, settings: Settings, members: tuple[int, ...], generation: int, ready: bool = True
) -> Meeting | Standby:
    """Meet the other ``members`` (ranks of ``world``, ascending) of this generation.

    Returns once all have come. Raises StallError naming those who did not within ``settings.start_deadline_s``,
    PeerLostError if one of them has died, ShutDownError if this generation is already over, UsageError if the members
    disagree about who they are, EnvironmentUnfit if this launch or machine cannot carry them.

    In an elastic job ``members`` is empty and ``generation`` the last one that this worker was in. Then the launcher
    decides who is in the next one, and when; it ends workers that it does not need, so this waits for as long as it
    takes. A worker that is not ``ready`` is put on standby if the job runs already.
    """
    line = _connect(world, settings, members)
    deadline_s = settings.start_deadline_s(len(members)) if members else _FOR_EVER_S
    hello = Hello(
        generation,
        world.rank,
        world.size,
        os.getpid(),
        world.host,
        members,
        settings,
        shm.available(),
        ready,
        has_fabric(settings),
    )
    try:
        greeting = line.greet(hello, deadline_s + _GRACE_S)
    except WireError as error:
        raise _hub_lost(world, members, error) from error
    finally:  # all have come, or will not
        for way in _offered.pop(members, ()):
            way.close()
    if greeting is None:
        raise StallError(f"the hub did not answer within {deadline_s + _GRACE_S:g} s. Is its process stopped?")
    message = greeting.message
    if isinstance(message, Refused):
        raise _REFUSALS.get(message.kind, HoraError)(message.text)
    if isinstance(message, Standby):
        return message
    return Meeting(
        generation=message.generation,
        rank=message.rank,
        peers=message.peers,
        transport=message.transport,
        settings=message.settings,
        channel=line,
        segment_fd=greeting.descriptor,
        hub_rank=-1 if _given(world) else 0,
        unshared=message.unshared,
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
_lines: dict[tuple[int, ...], HubConnection] = {}  # by members; under hora run one line serves all, kept under ()
_hubs: dict[tuple[int, ...], Hub] = {}
_offered: dict[tuple[int, ...], list[HubDiscovery]] = {}  # ways in which this process makes its hub known


def _given(world: World) -> bool:
    """Whether the launcher runs the hub."""
    return world.hub_fd >= 0 or bool(world.hub_addresses)


def _connect(world: World, settings: Settings, members: tuple[int, ...]) -> HubConnection:
    """The line to the hub of these members, opened if need be."""
    if world.rank not in members and not world.elastic:
        raise UsageError(f"rank {world.rank} cannot be part of a world of ranks {list(members)}, in which it is not.")
    key = () if _given(world) else members
    with _lock:
        line = _lines.get(key)
        if line is None or (line.lost and key):
            if world.hub_fd >= 0:
                line = _inherit(world)
            elif world.hub_addresses:
                line = _call(world, settings, members)
            elif world.local_size == world.size:
                line = _find(world, settings, members)
            else:
                line = _find_from_afar(world, settings, members)
            _lines[key] = line
        return line


def _inherit(world: World) -> HubConnection:
    os.set_inheritable(world.hub_fd, False)  # a worker's own children have no business on it
    try:
        sock = socket.socket(fileno=world.hub_fd)
    except OSError as error:
        raise EnvironmentUnfit(
            f"HORA_HUB_FD={world.hub_fd} is not an open connection to the launcher ({error}). The command must run as "
            "a child of hora run that keeps its file descriptors open."
        ) from error
    return _open(sock, host_pid=0)


def _call(world: World, settings: Settings, members: tuple[int, ...]) -> HubConnection:
    """By the addresses that the launcher handed over."""
    secret = bytes(world.secret)
    env.take_secret()
    if world.secret_fd >= 0:
        try:
            with open(world.secret_fd, "rb") as file:
                secret = file.read(SECRET_BYTES)
        except OSError as error:
            raise EnvironmentUnfit(
                f"HORA_SECRET_FD={world.secret_fd} cannot be read ({error}), so this worker cannot prove that it "
                "belongs to the job. The command must keep the file descriptors it inherits open."
            ) from error
    if len(secret) != SECRET_BYTES:
        raise EnvironmentUnfit(
            f"the hub listens at {', '.join(world.hub_addresses)} (HORA_HUB_ADDRESSES), but the job's secret is "
            "missing. Start the workers with hora run."
        )
    try:
        channel = reach(world.hub_addresses, secret, timeout_s=settings.start_deadline_s(len(members)))
    except Unreachable as error:
        raise _unreachable(world.host, "the launcher", error) from error
    return HubConnection(channel)


def _unreachable(host: str, whom: str, error: Unreachable) -> EnvironmentUnfit:
    tries = "\n".join(f"  {host} could not reach {address}: {what}" for address, what in error.failures.items())
    return EnvironmentUnfit(
        f"{host} could not reach {whom} at any of its addresses:\n{tries}\nThe hosts must reach each other by TCP: "
        "look at firewalls, and choose the network with --network-interfaces."
    )


def _run_hub(world: World, members: tuple[int, ...]) -> Hub:
    """The hub of these members, in this process."""
    if (old := _hubs.pop(members, None)) is not None:
        old.close()
    from hora.engine.hub import Hub  # most workers never run one

    hub = _hubs[members] = Hub(world.size, host=world.host)
    return hub


def _find_from_afar(world: World, settings: Settings, members: tuple[int, ...]) -> HubConnection:
    """In whatever way the notice of the lowest rank comes through."""
    deadline_s = settings.start_deadline_s(len(members))
    deadline = time.monotonic() + deadline_s
    open_ways, closed = discoveries(world, members, deadline_s), dict[str, str]()
    if not open_ways:
        address_file(world, members)  # says why
    seen, refused = None, None
    try:
        if world.rank == members[0]:
            seen, _offered[members] = _put_up(world, settings, members, open_ways), open_ways
        while True:
            notices = [seen] if world.rank == members[0] else _look(open_ways, closed)
            for notice in filter(None, notices):
                left_s = max(0.1, deadline - time.monotonic())
                try:
                    return HubConnection(reach(notice.addresses, notice.secret, timeout_s=min(left_s, _REACH_S)))
                except Unreachable as error:  # of an earlier job that crashed, perhaps; then it will be replaced
                    seen, refused = notice, error
            if time.monotonic() >= deadline:
                break
            time.sleep(_LOOK_S)
    finally:
        if members not in _offered:
            for way in open_ways:
                way.close()
    if seen is not None and refused is not None:
        raise _unreachable(world.host, f"rank {members[0]} on {seen.host}", refused) from refused
    tried = "\n".join(
        f"  {way.what}{': ' + closed[way.what] if way.what in closed else ': nothing'}" for way in open_ways
    )
    raise StallError(
        f"rank {world.rank} on {world.host} did not hear from rank {members[0]} within {deadline_s:g} s, and cannot "
        f"start without it. It looked\n{tried}\nEither rank {members[0]} did not call init(), and its output says why; "
        "or name a directory that all hosts share with HORA_RENDEZVOUS_DIR, or start the workers with hora run."
    )


def _put_up(
    world: World, settings: Settings, members: tuple[int, ...], open_ways: Sequence[HubDiscovery]
) -> HubAddress:
    """Run the hub, and make it known in every way there is."""
    hub = _run_hub(world, members)
    interfaces = settings.gloo_iface.split(",") if settings.gloo_iface else []
    listeners = [listen_tcp([address]) for address in addresses_of(world, interfaces)]
    addresses = tuple(join(ip_of(listener.getsockname()), listener.getsockname()[1]) for listener in listeners)
    notice = HubAddress(world.host, addresses, hub.secret)
    failures, path = [], None
    for way in open_ways:
        try:
            way.offer(notice)
            path = way.path if isinstance(way, FileDiscovery) else path
        except OSError as error:
            failures.append(f"  {way.what}: {error}")
    if len(failures) == len(open_ways):
        for listener in listeners:
            listener.close()
        tried = "\n".join(failures)
        raise EnvironmentUnfit(
            f"rank {world.rank} on {world.host} has no way to tell the workers on the other hosts where it is. It "
            f"tried\n{tried}\nSet HORA_RENDEZVOUS_DIR to a directory that all share, or start with hora run."
        )
    for listener in listeners:
        hub.open_tcp(listener, path=path, expected=len(members))
        path = None
    return notice


def _look(open_ways: Sequence[HubDiscovery], closed: dict[str, str]) -> list[HubAddress | None]:
    found = []
    for way in open_ways:
        if way.what not in closed:
            try:
                found.append(way.look())
            except OSError as error:
                closed[way.what] = str(error)
    return found


def _find(world: World, settings: Settings, members: tuple[int, ...]) -> HubConnection:
    """Through a Unix socket."""
    path = socket_path(world.job_key, members)
    if world.rank == members[0]:
        hub = _run_hub(world, members)
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


def _open(sock: socket.socket, host_pid: int) -> HubConnection:
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
    return HubConnection(Channel(sock, secret, "worker"), host_pid=host_pid)


def _hub_lost(world: World, members: tuple[int, ...], error: WireError) -> PeerLostError:
    if _given(world):
        return PeerLostError(f"the launcher is gone ({error}), so this worker cannot go on. End it.", host=world.host)
    text = f"rank {members[0]}, which runs the rendezvous, has ended ({error}). Look at its output for the reason."
    return PeerLostError(text, rank=0, host=world.host, status=str(error))


with contextlib.suppress(AttributeError):  # a forked child must not speak on its parent's lines

    def _after_fork() -> None:
        _lines.clear()
        _hubs.clear()
        _offered.clear()

    os.register_at_fork(after_in_child=_after_fork)
