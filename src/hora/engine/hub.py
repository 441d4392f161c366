"""The hub: the one process that every worker of a job is connected to. Owns the sockets; decides nothing itself.

It runs in a thread of the launcher (``hora run``) or, where something else launched the workers, of the lowest rank.
A ``Gathering`` says when a generation is complete, ``engine.choice`` which transport it gets, and
``engine.coordinator`` coordinates it. The hub sends their messages, hands out shared memory, and notices deaths. An
error in one generation ends that generation, never the hub.

Workers come by an inherited connection, a Unix socket, or TCP. Over the first two, which only this user can hold, the
hub gives them the job's secret; over TCP they have to prove that they know it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import queue
import secrets
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from hora.config.limits import room_for_descriptors
from hora.engine.choice import LINKED, SharedSegment, provide, reachable
from hora.engine.coordinator import Coordinator
from hora.engine.gathering import Gathering, GatheringOutcome, HelloRefused, MembersReady, OnStandby, RejoinRequest
from hora.engine.rendezvous import Rendezvous
from hora.wire import messages as m
from hora.wire.frame import SECRET_BYTES, Endpoint, WireClosed, WireError
from hora.wire.listen import ip_of, listen_unix, peer_of, tune_tcp

__all__ = ["Hub"]

_log = logging.getLogger("hora.hub")

_STATUS_WAIT_S = 0.3  # how long a dropped connection waits for the launcher to say how its process ended
_FAR_STATUS_WAIT_S = 0.6  # the same where the launcher has to hear of it from another host
_HANDSHAKE_S = 10.0
_FRAME_S = 30.0
_BACKLOG_BYTES = 64 * 2**20
_REASON_CHARACTERS = 4096
_TICK_S = 0.05
_IDLE_S = 1.0


class _ListeningSocket(NamedTuple):
    """Where workers may come in; it is shut when ``expected`` have, if that is said."""

    listener: socket.socket
    path: Path | None
    expected: int | None


class _Client:
    """One connection; ``theirs`` and ``ours`` are the addresses of its ends if it came by TCP."""

    def __init__(self, endpoint: Endpoint, rank: int | None, inherited: bool, theirs: str = "", ours: str = "") -> None:
        self.endpoint, self.rank, self.inherited, self.theirs, self.ours = endpoint, rank, inherited, theirs, ours
        self.since = time.monotonic()
        self.coordinator: Coordinator | None = None
        self.generation_rank = self.pidfd = -1
        self.lost_at: float | None = None


class Hub:
    """A hub for a launched world of ``size`` workers; runs until closed.

    ``add_worker``, ``listen``, ``open_tcp``, ``worker_exited``, ``call`` and ``close`` may be called from any thread.
    With a ``gathering`` of one's own, which then decides who belongs together, ranks are any numbers: those that the
    launcher gave its workers (``elastic.gather``).
    """

    def __init__(
        self, size: int, *, host: str = "localhost", secret: bytes | None = None, gathering: Gathering | None = None
    ) -> None:
        self._size, self._host = size, host
        room_for_descriptors(512 + 2 * size)  # a connection to each worker and its process, beside what else there is
        self._secret = secret or secrets.token_bytes(SECRET_BYTES)
        self._clients: dict[int, _Client] = {}  # by launched rank
        self._unidentified: set[_Client] = set()  # connected, but no Hello yet
        self._rendezvous: Gathering = gathering or Rendezvous(size)
        self._ranks = size if gathering is None else sys.maxsize
        self._coordinators: dict[Coordinator, dict[int, _Client]] = {}
        self._segments: dict[Coordinator, SharedSegment] = {}
        self._disconnected: dict[int, _Client] = {}  # connection gone, fate not yet known
        self._statuses: dict[int, str] = {}
        self._listening: list[_ListeningSocket] = []
        self._posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._selector = selectors.DefaultSelector()
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._selector.register(self._wake_in, selectors.EVENT_READ, self._woken)
        self._stopping = False
        self._complaints: set[str] = set()
        self._idle = threading.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._run, name="hora-hub", daemon=True)
        self._thread.start()

    # ---- from any thread ----

    @property
    def secret(self) -> bytes:
        """What workers that come by TCP have to know."""
        return self._secret

    def add_worker(self, rank: int, sock: socket.socket) -> None:
        """Serve the worker of ``rank`` on this end of a socket pair; the hub owns it from now on."""
        self._post(lambda: self._admit(sock, rank, inherited=True))

    def listen(self, path: Path, expected: int | None = None) -> None:
        """Let ``expected`` workers of this user connect to a Unix socket; it is unlinked when they have."""
        listener = listen_unix(path, self._size)
        listener.setblocking(False)
        self._post(lambda: self._open(_ListeningSocket(listener, path, expected or self._size)))

    def open_tcp(self, listener: socket.socket, *, path: Path | None = None, expected: int | None = None) -> None:
        """Let workers that know the secret connect to this listening socket; the hub owns it from now on.

        With ``expected`` it is closed, and the file at ``path`` removed, when so many workers have come.
        """
        listener.setblocking(False)
        self._post(lambda: self._open(_ListeningSocket(listener, path, expected)))

    def worker_exited(self, rank: int, status: str) -> None:
        """The launcher saw this worker's process end, like "exit code 1" or "signal 9 (SIGKILL)"."""
        self._post(lambda: self._exited(rank, status))

    def call(self, step: Callable[[], Sequence[GatheringOutcome]]) -> None:
        """Have the gathering told something in the hub's thread, and do what comes of it."""
        self._post(lambda: self._settle(step()))

    def drain(self, timeout_s: float) -> bool:
        """Wait until every generation that has begun is over: all its workers have left or died."""
        return self._idle.wait(timeout_s)

    def close(self) -> None:
        """Hang up on everybody and stop. Safe to call twice."""
        self._stopping = True
        self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5.0)

    def _post(self, call: Callable[[], None]) -> None:
        self._posted.put(call)
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full means it is about to wake; closed means it no longer matters
            self._wake_out.send(b"!")

    # ---- the loop ----

    def _run(self) -> None:
        next_tick = 0.0
        try:
            while not self._stopping:
                for key, events in self._selector.select(_TICK_S if self._timed() else _IDLE_S):
                    self._guarded(lambda: key.data(events))  # noqa: B023 (called at once)
                while not self._posted.empty():
                    self._guarded(self._posted.get())
                now = time.monotonic()
                if now >= next_tick:
                    self._guarded(lambda: self._tick(now))  # noqa: B023
                    next_tick = now + _TICK_S
                for coordinator in [*self._coordinators]:
                    self._guarded(lambda: self._deliver(coordinator), coordinator)  # noqa: B023
        except Exception:
            _log.exception("internal error in the hub; it stops")
        finally:
            self._shut()

    def _guarded(self, call: Callable[[], None], coordinator: Coordinator | None = None) -> None:
        """Whatever goes wrong in ``call`` is told, and ends the generation that it is about, but not the hub."""
        try:
            call()
        except Exception as error:
            if not isinstance(error, WireError) and repr(error) not in self._complaints:  # once, not at every turn
                self._complaints.add(repr(error))
                _log.exception("internal error in the hub; it continues")
            if coordinator is not None:
                self._give_up(
                    coordinator, str(error) if isinstance(error, WireError) else f"an error of Hora's: {error!r}"
                )

    def _give_up(self, coordinator: Coordinator, reason: str) -> None:
        """A generation that cannot be coordinated any more is over; its workers are told why."""
        text = f"the hub can no longer coordinate this generation: {reason}"
        for client in self._coordinators[coordinator].values():
            if client.coordinator is coordinator:
                self._send(client, m.encode(m.Refused(coordinator.generation, "unfit", text[:_REASON_CHARACTERS])))
        self._end_generation(coordinator)

    def _end_generation(self, coordinator: Coordinator) -> None:
        for client in self._coordinators.pop(coordinator).values():
            if client.coordinator is coordinator:  # was left behind: what it still says is answered as stale
                client.coordinator = None
        if (segment := self._segments.pop(coordinator, None)) is not None:
            segment.close()
        if not self._coordinators:
            self._idle.set()

    def _timed(self) -> bool:
        """Whether anything is under way that time may end soon."""
        soon = any(coordinator.outbox or coordinator.timed for coordinator in self._coordinators)
        return soon or bool(self._unidentified or self._disconnected or self._rendezvous.waiting)

    def _woken(self, _events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake_in.recv(4096)

    def _tick(self, now: float) -> None:
        self._settle(self._rendezvous.expire(now))
        for client in [g for g in self._unidentified if not g.endpoint.proven and now - g.since > _HANDSHAKE_S]:
            self._drop(client, "did not authenticate in time")
        for client in [*self._clients.values()]:
            since = client.endpoint.partial_since
            if since is not None and now - since > _FRAME_S and client.lost_at is None:
                self._drop(client, f"stopped in the middle of a message for {_FRAME_S:g} s")
        for rank, client in [*self._disconnected.items()]:
            far = f" from {client.theirs}" if client.theirs else ""
            if client.lost_at is not None and now - client.lost_at > (_FAR_STATUS_WAIT_S if far else _STATUS_WAIT_S):
                self._record_death(rank, f"its connection{far} closed: killed, or it ended without hora.shutdown()")
        for coordinator in [*self._coordinators]:
            self._guarded(lambda: coordinator.tick(now), coordinator)  # noqa: B023

    def _deliver(self, coordinator: Coordinator) -> None:
        coordinator.flush()
        outbox, coordinator.outbox = coordinator.outbox, []
        for ranks, message in outbox:
            payloads = [*m.portions(message)]
            for rank in ranks:
                client = self._coordinators[coordinator].get(rank)
                if client is not None and client.coordinator is coordinator:
                    for payload in payloads:
                        self._send(client, payload)
                    if isinstance(message, m.Farewell):
                        client.coordinator = None
        if not coordinator.present or all(
            g.coordinator is not coordinator for g in self._coordinators[coordinator].values()
        ):
            self._end_generation(coordinator)

    # ---- connections ----

    def _open(self, listening: _ListeningSocket) -> None:
        self._listening.append(listening)
        self._selector.register(listening.listener, selectors.EVENT_READ, lambda _: self._accept(listening.listener))

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE) and not self._make_room():
                time.sleep(_TICK_S)  # it will be tried again at once, and others have to give something back first
            return
        with contextlib.suppress(OSError):
            mine = sock.family != socket.AF_UNIX or peer_of(sock)[1] == os.getuid()
            if mine and (len(self._unidentified) < 2 * self._size + 16 or self._make_room()):
                self._admit(sock, None, inherited=False)
                return
        sock.close()

    def _make_room(self) -> bool:
        """Hang up on whoever has waited longest to identify itself; False if there is none."""
        unproven = [client for client in self._unidentified if not client.endpoint.proven]
        if unproven:
            self._drop(min(unproven, key=lambda client: client.since), "did not authenticate before others came")
        return bool(unproven)

    def _stop_listening(self, came: int | None) -> None:
        """Those that wait for no more than ``came``; None: all."""
        for listening in [listening for listening in self._listening if came is None or listening.expected == came]:
            self._listening.remove(listening)
            self._selector.unregister(listening.listener)
            listening.listener.close()
            if listening.path is not None:
                with contextlib.suppress(OSError):  # its directory may have become another's
                    listening.path.unlink()

    def _admit(self, sock: socket.socket, rank: int | None, inherited: bool) -> None:
        theirs = ours = ""
        with contextlib.suppress(OSError):
            sock.setblocking(False)
            if sock.family == socket.AF_UNIX:
                sock.send(self._secret)  # over a descriptor that only this user's worker can hold; always fits
            else:
                tune_tcp(sock)
                theirs, ours = ip_of(sock.getpeername()), ip_of(sock.getsockname())
        client = _Client(Endpoint(sock, self._secret, "hub"), rank, inherited, theirs, ours)
        if rank is not None:
            self._rendezvous.started(rank)
            self._statuses.pop(rank, None)
            self._clients[rank] = client
        else:
            self._unidentified.add(client)
        self._selector.register(sock, selectors.EVENT_READ, lambda events: self._serve(client, events))
        self._push(client)

    def _serve(self, client: _Client, events: int) -> None:
        try:
            if events & selectors.EVENT_READ:
                for payload in client.endpoint.read():
                    self._receive(client, m.decode(payload))
                if client.endpoint.ended:
                    self._drop(client, "")
                    return
        except WireError as error:
            self._drop(client, "" if isinstance(error, WireClosed) else str(error))
        except Exception as error:  # one worker's bad message must not take the job's hub down
            _log.exception("a message could not be handled")
            self._drop(client, f"its message could not be handled: {error}")
        else:
            self._push(client)

    def _send(self, client: _Client, payload: bytes, descriptors: tuple[int, ...] = ()) -> None:
        if client.lost_at is not None:
            return
        try:
            client.endpoint.queue(payload, descriptors)
        except WireError as error:
            self._drop(client, str(error))
        else:
            self._push(client)

    def _push(self, client: _Client) -> None:
        if client.lost_at is not None:
            return
        try:
            done = client.endpoint.write()
        except WireClosed:
            self._drop(client, "")
            return
        if not done and client.endpoint.backlog_bytes > _BACKLOG_BYTES:
            self._drop(client, f"does not read: {_BACKLOG_BYTES} bytes are waiting for it")
            return
        wanted = selectors.EVENT_READ if done else selectors.EVENT_READ | selectors.EVENT_WRITE
        key = self._selector.get_key(client.endpoint)
        if key.events != wanted:
            self._selector.modify(client.endpoint, wanted, key.data)

    def _drop(self, client: _Client, reason: str) -> None:
        """Hang up: for a reason of ours, or because the other end is gone, and then why that is will show."""
        if client.lost_at is not None:
            return
        client.lost_at = time.monotonic()
        self._selector.unregister(client.endpoint)
        client.endpoint.close()
        self._unidentified.discard(client)
        if client.pidfd >= 0:
            self._selector.unregister(client.pidfd)
            os.close(client.pidfd)
        if client.rank is None or self._clients.get(client.rank) is not client:
            return
        if reason:
            self._record_death(client.rank, f"dropped by the hub: {reason}")
        elif client.rank in self._statuses:
            self._record_death(client.rank, self._statuses[client.rank])
        else:
            self._disconnected[client.rank] = client

    def _exited(self, rank: int, status: str) -> None:
        self._statuses[rank] = status
        client = self._clients.get(rank)
        if client is not None and client.lost_at is None:
            self._serve(client, selectors.EVENT_READ)  # its last words, perhaps a Bye, may still be in the socket
        self._record_death(rank, status)

    def _record_death(self, rank: int, status: str) -> None:
        self._disconnected.pop(rank, None)
        client = self._clients.get(rank)
        self._settle(self._rendezvous.ended(rank, status, left=client is not None and client.coordinator is None))
        if self._clients.pop(rank, None) is None or client is None:
            return
        coordinator, client.coordinator = client.coordinator, None
        if coordinator is not None:
            first = coordinator.dead is None
            coordinator.died(client.generation_rank, status)
            if first and coordinator in self._segments:
                self._segments[coordinator].mark_dead(client.generation_rank, status)
        if client.lost_at is None:
            self._drop(client, "")

    # ---- messages ----

    def _receive(self, client: _Client, message: m.AnyMessage) -> None:
        if isinstance(message, m.Hello):
            self._greet(client, message)
        elif isinstance(message, m.Entered):
            if client.rank is not None:
                self._settle(self._rendezvous.entered(client.rank))
        elif client.coordinator is not None and message.generation == client.coordinator.generation:
            if isinstance(message, m.GivenUp):
                self._note_given_up(client, client.coordinator, message)
            client.coordinator.receive(client.generation_rank, message, time.monotonic())
        elif isinstance(message, m.Bye):
            self._send(client, m.encode(m.Farewell(message.generation)))
        elif not isinstance(message, m.StackReply | m.StateReply | m.StoreSet):  # answers may come late without harm
            text = (
                f"a {type(message).__name__} of generation {message.generation} came after that generation was over: "
                "the sender was left behind and must call shutdown() and init() again."
            )
            self._send(client, m.encode(m.Refused(message.generation, "stale", text)))

    def _note_given_up(self, by: _Client, coordinator: Coordinator, message: m.GivenUp) -> None:
        whom = self._coordinators[coordinator].get(message.rank)
        if coordinator.dead is None and by.rank is not None and whom is not None and whom.rank is not None:
            self._settle(self._rendezvous.given_up(by.rank, whom.rank, message.status, host=message.host))

    def _greet(self, client: _Client, hello: m.Hello) -> None:
        rival = self._clients.get(hello.rank)
        if (client.rank is not None and client.rank != hello.rank) or (rival is not None and rival is not client):
            text = f"rank {hello.rank} is another worker. Two workers were started with the same rank."
            self._send(client, m.encode(m.Refused(hello.generation, "usage", text)))
            return
        if not 0 <= hello.rank < self._ranks:
            text = f"there is no rank {hello.rank} among {self._size} workers."
            self._send(client, m.encode(m.Refused(hello.generation, "usage", text)))
            return
        if client.rank is None:
            client.rank = hello.rank
            self._clients[hello.rank] = client
            self._unidentified.discard(client)
            self._rendezvous.started(hello.rank)
            self._stop_listening(len(self._clients))
        self._watch(client, hello)
        if client.coordinator is not None:  # a new Hello takes the place of a Bye that was not said
            client.coordinator.receive(client.generation_rank, m.Bye(client.coordinator.generation), time.monotonic())
            client.coordinator = None
        self._settle(self._rendezvous.hello(hello, time.monotonic()))

    def _watch(self, client: _Client, hello: m.Hello) -> None:
        """Notice the process's end even while its children hold its socket open."""
        if client.inherited or client.pidfd >= 0 or hello.host != self._host or hello.pid == os.getpid():
            return
        with contextlib.suppress(OSError):
            client.pidfd = os.pidfd_open(hello.pid)
            self._selector.register(
                client.pidfd, selectors.EVENT_READ, lambda _: self._exited(hello.rank, "its process ended")
            )

    def _settle(self, outcomes: Sequence[GatheringOutcome]) -> None:
        for outcome in outcomes:
            match outcome:
                case MembersReady(hellos=hellos, generation=generation):
                    self._begin(hellos, hellos[0].generation if generation is None else generation)
                case OnStandby(hello=hello, rank=rank, size=size):
                    if (client := self._clients.get(hello.rank)) is not None:
                        self._send(client, m.encode(m.Standby(hello.generation, rank, size)))
                case RejoinRequest(ranks=ranks, generation=generation):
                    for rank in ranks:
                        if (client := self._clients.get(rank)) is not None:
                            self._send(client, m.encode(m.Updated(generation)))
                case HelloRefused(hello=hello, kind=kind, text=text):
                    if (client := self._clients.get(hello.rank)) is not None:
                        self._send(client, m.encode(m.Refused(hello.generation, kind, text)))

    def _begin(self, hellos: tuple[m.Hello, ...], generation: int) -> None:
        """A generation is complete: choose its transport and welcome everybody."""
        settings = hellos[0].settings
        came = {h.rank: self._clients[h.rank] for h in hellos if h.rank in self._clients}
        addresses = reachable({rank: (client.theirs, client.ours) for rank, client in came.items()})
        peers = tuple(m.Peer(i, h.rank, h.pid, h.host, addresses.get(h.rank, "")) for i, h in enumerate(hellos))
        transport, segment, failure = provide(hellos, generation, near=not any(g.theirs for g in came.values()))
        clients = {peer.rank: came[peer.launched_rank] for peer in peers if peer.launched_rank in came}
        if transport != "shm" and settings.transport == "shm":
            text = f"shared memory was asked for (transport 'shm') but not available: {failure}\nUse transport 'auto'."
            for client in clients.values():
                self._send(client, m.encode(m.Refused(generation, "unfit", text)))
            return
        coordinator = Coordinator(generation, peers, settings, transport in LINKED)
        self._coordinators[coordinator] = clients
        self._idle.clear()
        if segment is not None:
            self._segments[coordinator] = segment
        for rank, client in clients.items():
            client.coordinator, client.generation_rank = coordinator, rank
        for rank, client in clients.items():
            welcome = m.Welcome(generation, rank, peers, transport, settings, segment is not None, failure)
            self._send(client, m.encode(welcome), () if segment is None else (segment.fd,))

    def _shut(self) -> None:
        self._idle.set()
        self._stop_listening(None)
        for client in {*self._clients.values(), *self._unidentified, *self._disconnected.values()}:
            if client.lost_at is None:
                client.endpoint.close()
            with contextlib.suppress(OSError):
                os.close(client.pidfd)
        for segment in self._segments.values():
            segment.close()
        for end in (self._wake_in, self._wake_out, self._selector):
            end.close()
