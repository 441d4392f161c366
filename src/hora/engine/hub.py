"""The hub: the one process that every worker of a job is connected to. Owns the sockets; decides nothing itself.

It runs in a thread of the launcher (``hora run``) or, where something else launched the workers, of the lowest rank.
``engine.rendezvous`` says when a generation is complete, ``engine.circle`` coordinates it; the hub carries their
messages, hands out shared memory, and notices deaths: a connection that drops, a process that ends, or what the
launcher reports. Whatever a worker sends, the worst that happens is that this worker is dropped; what goes wrong in a
generation, or is too large to be said, ends that generation with a sentence to its workers, and never the hub.

Workers come by an inherited connection, a Unix socket, or TCP. Over the first two, which only this user's processes can
hold, the hub gives them the job's secret; over TCP it never does: who comes there has to prove that it knows it.
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
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from hora.engine.choice import SharedSegment, choose, make_segment
from hora.engine.circle import Circle
from hora.engine.rendezvous import Gathered, Rendezvous, TurnedAway
from hora.wire import messages as m
from hora.wire.door import ip_of, open_door, peer_of, tune_tcp
from hora.wire.frame import SECRET_BYTES, Endpoint, WireClosed, WireError

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


class _Door(NamedTuple):
    """Where workers may come in; it is shut when ``expected`` have, if that is said."""

    listener: socket.socket
    path: Path | None
    expected: int | None


class _Guest:
    """One connection; ``theirs`` and ``ours`` are the addresses of its ends if it came by TCP."""

    def __init__(self, endpoint: Endpoint, rank: int | None, inherited: bool, theirs: str = "", ours: str = "") -> None:
        self.endpoint, self.rank, self.inherited = endpoint, rank, inherited
        self.theirs, self.ours = theirs, ours
        self.since = time.monotonic()
        self.circle: Circle | None = None
        self.circle_rank = -1
        self.pidfd = -1
        self.lost_at: float | None = None


class Hub:
    """A hub for a launched world of ``size`` workers; runs until closed.

    ``add_worker``, ``listen``, ``open_tcp``, ``worker_exited`` and ``close`` may be called from any thread.
    """

    def __init__(self, size: int, *, host: str = "localhost", secret: bytes | None = None) -> None:
        self._size, self._host = size, host
        self._secret = secret or secrets.token_bytes(SECRET_BYTES)
        self._guests: dict[int, _Guest] = {}  # by launched rank
        self._strangers: set[_Guest] = set()  # connected, but no Hello yet
        self._rendezvous = Rendezvous(size)
        self._circles: dict[Circle, dict[int, _Guest]] = {}
        self._segments: dict[Circle, SharedSegment] = {}
        self._fading: dict[int, _Guest] = {}  # connection gone, fate not yet known
        self._statuses: dict[int, str] = {}
        self._doors: list[_Door] = []
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
        listener = open_door(path, self._size)
        listener.setblocking(False)
        self._post(lambda: self._open(_Door(listener, path, expected or self._size)))

    def open_tcp(self, listener: socket.socket, *, path: Path | None = None, expected: int | None = None) -> None:
        """Let workers that know the secret connect to this listening socket; the hub owns it from now on.

        With ``expected`` it is closed, and the file at ``path`` removed, when so many workers have come.
        """
        listener.setblocking(False)
        self._post(lambda: self._open(_Door(listener, path, expected)))

    def worker_exited(self, rank: int, status: str) -> None:
        """The launcher saw this worker's process end, like "exit code 1" or "signal 9 (SIGKILL)"."""
        self._post(lambda: self._exited(rank, status))

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
                for circle in [*self._circles]:
                    self._guarded(lambda: self._deliver(circle), circle)  # noqa: B023
        except Exception:
            _log.exception("the hub stopped on an error of its own")
        finally:
            self._shut()

    def _guarded(self, call: Callable[[], None], circle: Circle | None = None) -> None:
        """Whatever goes wrong in ``call`` is told, and ends the circle that it is about, but not the hub."""
        try:
            call()
        except Exception as error:
            if not isinstance(error, WireError) and repr(error) not in self._complaints:  # once, not at every turn
                self._complaints.add(repr(error))
                _log.exception("the hub met an error of its own and goes on")
            if circle is not None:
                self._give_up(circle, str(error) if isinstance(error, WireError) else f"an error of Hora's: {error!r}")

    def _give_up(self, circle: Circle, reason: str) -> None:
        """A generation that cannot be coordinated any more is over; its workers are told why."""
        text = f"the hub can no longer coordinate this generation: {reason}"
        for guest in self._circles[circle].values():
            if guest.circle is circle:
                self._send(guest, m.encode(m.Refused(circle.generation, "unfit", text[:_REASON_CHARACTERS])))
        self._end_circle(circle)

    def _end_circle(self, circle: Circle) -> None:
        for guest in self._circles.pop(circle).values():
            if guest.circle is circle:  # was left behind: what it still says is answered as stale
                guest.circle = None
        if (segment := self._segments.pop(circle, None)) is not None:
            segment.close()
        if not self._circles:
            self._idle.set()

    def _timed(self) -> bool:
        """Whether anything is under way that time may end soon."""
        soon = any(circle.outbox or circle.timed for circle in self._circles)
        return soon or bool(self._strangers or self._fading or self._rendezvous.waiting)

    def _woken(self, _events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake_in.recv(4096)

    def _tick(self, now: float) -> None:
        self._settle(self._rendezvous.expire(now))
        for guest in [g for g in self._strangers if not g.endpoint.proven and now - g.since > _HANDSHAKE_S]:
            self._drop(guest, "did not authenticate in time")
        for guest in [*self._guests.values()]:
            since = guest.endpoint.partial_since
            if since is not None and now - since > _FRAME_S and guest.lost_at is None:
                self._drop(guest, f"stopped in the middle of a message for {_FRAME_S:g} s")
        for rank, guest in [*self._fading.items()]:
            far = f" from {guest.theirs}" if guest.theirs else ""
            if guest.lost_at is not None and now - guest.lost_at > (_FAR_STATUS_WAIT_S if far else _STATUS_WAIT_S):
                self._bury(rank, f"its connection{far} closed: killed, or it ended without hora.shutdown()")
        for circle in [*self._circles]:
            self._guarded(lambda: circle.tick(now), circle)  # noqa: B023

    def _deliver(self, circle: Circle) -> None:
        circle.flush()
        outbox, circle.outbox = circle.outbox, []
        for ranks, message in outbox:
            payloads = [*m.portions(message)]
            for rank in ranks:
                guest = self._circles[circle].get(rank)
                if guest is not None and guest.circle is circle:
                    for payload in payloads:
                        self._send(guest, payload)
                    if isinstance(message, m.Farewell):
                        guest.circle = None
        if not circle.present or all(g.circle is not circle for g in self._circles[circle].values()):
            self._end_circle(circle)

    # ---- connections ----

    def _open(self, door: _Door) -> None:
        self._doors.append(door)
        self._selector.register(door.listener, selectors.EVENT_READ, lambda _: self._accept(door.listener))

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE) and not self._make_room():
                time.sleep(_TICK_S)  # it will be tried again at once, and others have to give something back first
            return
        with contextlib.suppress(OSError):
            mine = sock.family != socket.AF_UNIX or peer_of(sock)[1] == os.getuid()
            if mine and (len(self._strangers) < 2 * self._size + 16 or self._make_room()):
                self._admit(sock, None, inherited=False)
                return
        sock.close()

    def _make_room(self) -> bool:
        """Hang up on whoever has waited longest to be told apart from a stranger; False if there is none."""
        unproven = [guest for guest in self._strangers if not guest.endpoint.proven]
        if unproven:
            self._drop(min(unproven, key=lambda guest: guest.since), "did not authenticate before others came")
        return bool(unproven)

    def _shut_doors(self, came: int | None) -> None:
        """Those that wait for no more than ``came``; None: all."""
        for door in [door for door in self._doors if came is None or door.expected == came]:
            self._doors.remove(door)
            self._selector.unregister(door.listener)
            door.listener.close()
            if door.path is not None:
                with contextlib.suppress(OSError):  # its directory may have become another's
                    door.path.unlink()

    def _admit(self, sock: socket.socket, rank: int | None, inherited: bool) -> None:
        theirs = ours = ""
        with contextlib.suppress(OSError):
            sock.setblocking(False)
            if sock.family == socket.AF_UNIX:
                sock.send(self._secret)  # over a descriptor that only this user's worker can hold; always fits
            else:
                tune_tcp(sock)
                theirs, ours = ip_of(sock.getpeername()), ip_of(sock.getsockname())
        guest = _Guest(Endpoint(sock, self._secret, "hub"), rank, inherited, theirs, ours)
        if rank is not None:
            self._rendezvous.started(rank)
            self._statuses.pop(rank, None)
            self._guests[rank] = guest
        else:
            self._strangers.add(guest)
        self._selector.register(sock, selectors.EVENT_READ, lambda events: self._serve(guest, events))
        self._push(guest)

    def _serve(self, guest: _Guest, events: int) -> None:
        try:
            if events & selectors.EVENT_READ:
                for payload in guest.endpoint.read():
                    self._receive(guest, m.decode(payload))
                if guest.endpoint.ended:
                    self._drop(guest, "")
                    return
        except WireError as error:
            self._drop(guest, "" if isinstance(error, WireClosed) else str(error))
        except Exception as error:  # one worker's nonsense must not take the job's hub down
            _log.exception("a message could not be handled")
            self._drop(guest, f"its message could not be handled: {error}")
        else:
            self._push(guest)

    def _send(self, guest: _Guest, payload: bytes, descriptors: tuple[int, ...] = ()) -> None:
        if guest.lost_at is not None:
            return
        try:
            guest.endpoint.queue(payload, descriptors)
        except WireError as error:
            self._drop(guest, str(error))
        else:
            self._push(guest)

    def _push(self, guest: _Guest) -> None:
        if guest.lost_at is not None:
            return
        try:
            done = guest.endpoint.write()
        except WireClosed:
            self._drop(guest, "")
            return
        if not done and guest.endpoint.backlog_bytes > _BACKLOG_BYTES:
            self._drop(guest, f"does not read: {_BACKLOG_BYTES} bytes are waiting for it")
            return
        wanted = selectors.EVENT_READ if done else selectors.EVENT_READ | selectors.EVENT_WRITE
        key = self._selector.get_key(guest.endpoint)
        if key.events != wanted:
            self._selector.modify(guest.endpoint, wanted, key.data)

    def _drop(self, guest: _Guest, reason: str) -> None:
        """Hang up: for a reason of ours, or because the other end is gone, and then why that is will show."""
        if guest.lost_at is not None:
            return
        guest.lost_at = time.monotonic()
        self._selector.unregister(guest.endpoint)
        guest.endpoint.close()
        self._strangers.discard(guest)
        if guest.pidfd >= 0:
            self._selector.unregister(guest.pidfd)
            os.close(guest.pidfd)
        if guest.rank is None or self._guests.get(guest.rank) is not guest:
            return
        if reason:
            self._bury(guest.rank, f"dropped by the hub: {reason}")
        elif guest.rank in self._statuses:
            self._bury(guest.rank, self._statuses[guest.rank])
        else:
            self._fading[guest.rank] = guest

    def _exited(self, rank: int, status: str) -> None:
        self._statuses[rank] = status
        guest = self._guests.get(rank)
        if guest is not None and guest.lost_at is None:
            self._serve(guest, selectors.EVENT_READ)  # its last words, perhaps a Bye, may still be in the socket
        self._bury(rank, status)

    def _bury(self, rank: int, status: str) -> None:
        self._fading.pop(rank, None)
        self._settle(self._rendezvous.ended(rank, status))
        guest = self._guests.pop(rank, None)
        if guest is None:
            return
        circle, guest.circle = guest.circle, None
        if circle is not None:
            first = circle.dead is None
            circle.died(guest.circle_rank, status)
            if first and circle in self._segments:
                self._segments[circle].mark_dead(guest.circle_rank, status)
        if guest.lost_at is None:
            self._drop(guest, "")

    # ---- messages ----

    def _receive(self, guest: _Guest, message: m.AnyMessage) -> None:
        if isinstance(message, m.Hello):
            self._greet(guest, message)
        elif guest.circle is not None and message.generation == guest.circle.generation:
            guest.circle.receive(guest.circle_rank, message, time.monotonic())
        elif isinstance(message, m.Bye):
            self._send(guest, m.encode(m.Farewell(message.generation)))
        elif not isinstance(message, m.StackReply | m.StateReply | m.StoreSet):  # answers may come late without harm
            text = (
                f"a {type(message).__name__} of generation {message.generation} came after that generation was over: "
                "the sender was left behind and must call shutdown() and init() again."
            )
            self._send(guest, m.encode(m.Refused(message.generation, "stale", text)))

    def _greet(self, guest: _Guest, hello: m.Hello) -> None:
        rival = self._guests.get(hello.rank)
        if (guest.rank is not None and guest.rank != hello.rank) or (rival is not None and rival is not guest):
            text = f"rank {hello.rank} is another worker. Two workers were started with the same rank."
            self._send(guest, m.encode(m.Refused(hello.generation, "usage", text)))
            return
        if not 0 <= hello.rank < self._size:
            text = f"there is no rank {hello.rank} among {self._size} workers."
            self._send(guest, m.encode(m.Refused(hello.generation, "usage", text)))
            return
        if guest.rank is None:
            guest.rank = hello.rank
            self._guests[hello.rank] = guest
            self._strangers.discard(guest)
            self._rendezvous.started(hello.rank)
            self._shut_doors(len(self._guests))
        self._watch(guest, hello)
        if guest.circle is not None:  # a new Hello takes the place of a Bye that was not said
            guest.circle.receive(guest.circle_rank, m.Bye(guest.circle.generation), time.monotonic())
            guest.circle = None
        self._settle(self._rendezvous.hello(hello, time.monotonic()))

    def _watch(self, guest: _Guest, hello: m.Hello) -> None:
        """Notice the process's end even while its children hold its socket open."""
        if guest.inherited or guest.pidfd >= 0 or hello.host != self._host or hello.pid == os.getpid():
            return
        with contextlib.suppress(OSError):
            guest.pidfd = os.pidfd_open(hello.pid)
            self._selector.register(
                guest.pidfd, selectors.EVENT_READ, lambda _: self._exited(hello.rank, "its process ended")
            )

    def _settle(self, outcomes: list[Gathered | TurnedAway]) -> None:
        for outcome in outcomes:
            match outcome:
                case Gathered(hellos=hellos):
                    self._begin(hellos)
                case TurnedAway(hello=hello, kind=kind, text=text):
                    if (guest := self._guests.get(hello.rank)) is not None:
                        self._send(guest, m.encode(m.Refused(hello.generation, kind, text)))

    def _begin(self, hellos: tuple[m.Hello, ...]) -> None:
        """A generation is complete: choose its transport and welcome everybody."""
        generation, settings = hellos[0].generation, hellos[0].settings
        addresses = self._addresses(hellos)
        peers = tuple(m.Peer(i, h.rank, h.pid, h.host, addresses.get(h.rank, "")) for i, h in enumerate(hellos))
        transport, failure = choose(hellos)
        segment: SharedSegment | None = None
        near = not any(self._guests[h.rank].theirs for h in hellos if h.rank in self._guests)
        if transport == "shm" and near:  # over TCP no memory can be handed out
            segment, failure = make_segment(len(peers), generation, settings)
            transport = "shm" if segment is not None else "gloo"
        guests = {peer.rank: self._guests[peer.launched_rank] for peer in peers if peer.launched_rank in self._guests}
        if transport != "shm" and settings.transport == "shm":
            text = f"shared memory was asked for (transport 'shm') but cannot be had: {failure}\nUse transport 'auto'."
            for guest in guests.values():
                self._send(guest, m.encode(m.Refused(generation, "unfit", text)))
            return
        circle = Circle(generation, peers, settings, transport == "shm+tcp")
        self._circles[circle] = guests
        self._idle.clear()
        if segment is not None:
            self._segments[circle] = segment
        for rank, guest in guests.items():
            guest.circle, guest.circle_rank = circle, rank
        for rank, guest in guests.items():
            welcome = m.Welcome(generation, rank, peers, transport, settings, segment is not None, failure)
            self._send(guest, m.encode(welcome), () if segment is None else (segment.fd,))

    def _addresses(self, hellos: Sequence[m.Hello]) -> dict[int, str]:
        """By which address the others reach each worker's host, as far as connections have shown it.

        Who came by TCP is where it came from. Who is on the hub's own host is where those from elsewhere came to.
        """
        came = {h.rank: self._guests[h.rank] for h in hellos if h.rank in self._guests}
        here = [guest.ours for guest in came.values() if guest.ours and not guest.ours.startswith("127.")]
        addresses = {rank: guest.theirs for rank, guest in came.items()}
        for rank, address in addresses.items():
            if not address or address.startswith("127."):
                addresses[rank] = here[0] if here else address
        return addresses

    def _shut(self) -> None:
        self._idle.set()
        self._shut_doors(None)
        for guest in {*self._guests.values(), *self._strangers, *self._fading.values()}:
            if guest.lost_at is None:
                guest.endpoint.close()
            if guest.pidfd >= 0:
                with contextlib.suppress(OSError):
                    os.close(guest.pidfd)
        for segment in self._segments.values():
            segment.close()
        self._selector.close()
        self._wake_in.close()
        self._wake_out.close()
