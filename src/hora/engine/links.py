"""A generation on several hosts: the table of each host, and the connections between their leaders.

The lowest rank of each host is its leader. It makes the host's memory, shows it to the others of the host, and has a
connection to every other leader. Both ends of a connection prove that they know the job's secret (``wire.frame``); then
it belongs to the C core, with a key of its own, and Python has nothing more to do with it. With ``HORA_TRANSPORT=ucx``
they also tell each other where UCX reaches them (``transport.fabric``); it then carries the same frames.

What cannot be known inside the core comes over the connection to the hub: who died, and what every host knows of
operations that wait, for stall and deadlock reports.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import selectors
import socket
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from hora.config.limits import room_for_descriptors
from hora.engine.backend import Pending, Snapshot
from hora.engine.coordinator import look_every_s
from hora.engine.hosttable import make_segment, open_segment, refusal, shared_by
from hora.engine.meet import Meeting
from hora.engine.snapshot import pack, unpack
from hora.engine.table import TableBackend
from hora.engine.tablefault import Status
from hora.errors import EnvironmentUnfit, HoraError, PeerLostError, StallError
from hora.transport import shm
from hora.transport.fabric import Fabric
from hora.wire.addresses import candidates, join
from hora.wire.frame import Channel, WireError, WireTimeout
from hora.wire.listen import ip_of, listen_on, listen_tcp, tune_tcp
from hora.wire.messages import AnyMessage, Died, FailStalled, GivenUp, LastWords, Peer, Refused, StateAsk, StateReply
from hora.wire.reach import Unreachable, reach

__all__ = ["HostsBackend", "start"]

_NONCE_BYTES = 32
_HANDSHAKE_S = 10.0
_SNAPSHOT_S = 3.0
_LINGER_S = 10.0
_SLICE_US = 200_000
_TRIES = 2.0  # times the host timeout: to connect, in an elastic job
_TRY_S = 2.0  # to connect, before looking whether somebody has died
_AGAIN_S = 0.05
_AFTER_S = 3.0  # how much longer the others wait for the first, which waits for each of them
_LOOK_S = 0.2
_MOST_UNPROVEN = 64  # connections that have not shown yet that they are a leader's
_OTHERS = 512  # descriptors of a process that are not connections between hosts
_OLD_S = 0.5  # an operation that is younger was submitted after the verdict on it
_WORDS_CHARACTERS = 8192


class _Greeting(msgspec.Struct, frozen=True, array_like=True):
    """What the ends of a new connection tell each other."""

    host: int
    nonce: bytes
    fabric: bytes = b""  # where UCX reaches it, if that carries


class HostsBackend(TableBackend):
    """``engine.backend.Backend`` on several hosts: the table's, with others to ask about what is elsewhere."""

    narrows = True

    def __init__(self, meeting: Meeting, fd: int, leads: bool) -> None:
        super().__init__(fd, meeting.rank, meeting.peers, meeting.settings, meeting.generation, meeting.channel)
        self._meeting, self._leads = meeting, leads
        self.died: Died | None = None  # the first of this generation that did
        meeting.channel.subscribe(self._hear, self._lost)

    def link(self, sockets: Sequence[int], keys: bytes, addresses: Sequence[bytes], fabric: Fabric | None) -> None:
        """Give the core its connections, by host, with the keys of both directions, and what carries in their place."""
        places = (ctypes.c_char_p * len(sockets))(*addresses)
        handle = fabric.give() if fabric is not None else None
        if error := self._lib.link(self._core, (ctypes.c_int32 * len(sockets))(*sockets), keys, handle, places):
            raise OSError(error, os.strerror(error))

    def snapshot(self) -> Snapshot:
        assert self._line is not None
        try:
            packed = self._line.snapshot(self._generation, _SNAPSHOT_S + look_every_s(len(self.peers)))
        except WireError:
            packed = None
        return Snapshot(-1, (), ()) if packed is None else unpack(packed)

    def fail(self, pending: Pending, kind: str, text: str) -> None:
        """By way of the hub, to all hosts: this one may not know of the operation, and one text is for all."""
        assert self._line is not None
        verdict = FailStalled(self._generation, pending.name, pending.members, pending.missing, kind, text)
        with contextlib.suppress(WireError):  # then everything fails anyway
            self._line.send(verdict)

    def _fail_here(self, verdict: FailStalled) -> None:
        """Only if it is still that one: it may have been submitted again since."""
        for p in self._snapshot()[0].pending:
            if (p.name, p.members) == (verdict.name, verdict.members) and p.age_s >= _OLD_S:
                super().fail(p, verdict.kind, verdict.text)

    def give_up(self, rank: int, status: str) -> None:
        assert self._line is not None
        with contextlib.suppress(WireError):
            self._line.send(GivenUp(self._generation, rank, status))
        super().give_up(rank, status)

    def python_stack(self, rank: int, timeout_s: float) -> str:
        if self.peers[rank].host == self.peers[self.rank].host:
            return super().python_stack(rank, timeout_s)
        assert self._line is not None
        return self._line.python_stack(self._generation, rank, timeout_s)

    def say(self, text: str) -> None:
        super().say(text)
        assert self._line is not None
        with contextlib.suppress(WireError):
            self._line.send(LastWords(self._generation, text[-_WORDS_CHARACTERS:]))

    def close(self) -> None:
        """A leader stays until the others of its host, and the other hosts, have left."""
        deadline = time.monotonic() + _LINGER_S
        while self._core and self._leads and self._lib.linger(self._core, _SLICE_US) == Status.PENDING:
            if time.monotonic() > deadline:
                self._lib.linger(self._core, 0)  # what needs this host is refused from now on
                break
        super().close()

    # ---- the line's thread ----

    def _hear(self, message: AnyMessage) -> None:
        core = self._core
        if not core:
            return
        match message:
            case Died(rank=rank, status=status, words=words):
                self.died = self.died or message
                if words:
                    self._lib.say(core, rank, words.encode())
                self._lib.mark_dead(core, rank, status.encode())
            case FailStalled() if self._leads:
                self._fail_here(message)
            case Refused(text=text):
                self._lib.mark_dead(core, self.rank, text.encode())
            case StateAsk(id=ask_id):
                here = self._snapshot()[0]
                state = next((r for r in here.ranks if r.rank == self.rank), None)
                pending = pack(here._replace(ranks=())) if self._leads else b""
                blocked, waiting_on = (state.blocked, state.waiting_on) if state is not None else (False, ())
                assert self._line is not None
                with contextlib.suppress(WireError):
                    self._line.send(StateReply(self._generation, ask_id, blocked, waiting_on, pending))

    def _lost(self, reason: str) -> None:
        """The hub is gone: with the rank that ran it, or with the launcher."""
        hub_rank = self._meeting.hub_rank
        if hub_rank >= 0 and hub_rank != self.rank:
            self._lib.mark_dead(self._core, hub_rank, reason.encode())
        else:
            self.abort(f"the launcher is gone ({reason})")


def start(meeting: Meeting, *, elastic: bool = False) -> tuple[HostsBackend, shm.Segment | None]:
    """The backend of this rank, connected; and the memory of this host, if this rank made it, which is to be closed
    when all have opened it. Raises PeerLostError if a rank dies meanwhile; in an ``elastic`` job also if hosts cannot
    reach each other, which the launcher is told: it decides who goes on."""
    peers, rank, generation, line = meeting.peers, meeting.rank, meeting.generation, meeting.channel
    hosts = list(dict.fromkeys(peer.host for peer in peers))
    host_of = [hosts.index(peer.host) for peer in peers]
    mine = host_of[rank]
    leaders = [host_of.index(host) for host in range(len(hosts))]
    leads = leaders[mine] == rank
    if not leads:
        leader = peers[leaders[mine]]
        fd = open_segment(shared_by(meeting, f"shm/{mine}", leader), leader)
        try:
            return HostsBackend(meeting, fd, leads), None
        finally:
            os.close(fd)
    segment, shown = make_segment(len(peers), generation, meeting.settings, host_of, mine)
    line.store_set(generation, f"shm/{mine}", shown)
    if segment is None:
        if mine:
            line.store_set(generation, f"link/{mine}", shown)
        else:
            line.store_set(generation, "link of all", msgspec.msgpack.encode([shown] + [b""] * (len(hosts) - 1)))
        raise EnvironmentUnfit(f"the workers of {hosts[mine]} cannot share memory: {refusal(shown)}")
    backend = HostsBackend(meeting, segment.fd, leads)
    fabric = None
    try:
        fabric = Fabric(peers[rank].address or candidates()[0]) if meeting.transport == "shm+ucx" else None
        connecting = _Connecting(meeting, [peers[leader] for leader in leaders], mine, backend, elastic=elastic)
        backend.link(*connecting.connect(fabric.address if fabric is not None else b""), fabric)
    except BaseException:
        backend.close()
        if fabric is not None:
            fabric.close()
        raise
    return backend, segment


class _Connecting:
    """The leaders of a new generation connect to each other: each to those before it."""

    def __init__(
        self, meeting: Meeting, leaders: Sequence[Peer], mine: int, backend: HostsBackend, *, elastic: bool
    ) -> None:
        self._meeting, self._leaders, self._mine, self._backend, self._elastic = (
            meeting,
            leaders,
            mine,
            backend,
            elastic,
        )
        self._secret = meeting.channel.key_for(f"links of generation {meeting.generation}")
        settings = meeting.settings  # in an elastic job everybody is here already, and others may go on without us
        limit_s = _TRIES * settings.host_timeout_s if elastic else settings.start_deadline_s(len(leaders))
        self._deadline = time.monotonic() + limit_s
        hosts = len(leaders)
        self._sockets, self._keys, self._fabrics = [-1] * hosts, [bytes(64)] * hosts, [b""] * hosts

    def connect(self, fabric: bytes) -> tuple[list[int], bytes, list[bytes]]:
        """A connection to each of the other leaders, by host (-1: this one), the keys of both directions, and where UCX
        reaches it, if it does (``fabric``: this one): that travels on the connection, so it comes from who it is said
        to come from."""
        room_for_descriptors(_OTHERS + 2 * len(self._leaders))
        try:
            with contextlib.ExitStack() as stack:
                listeners, own = _listen(self._leaders[self._mine], self._meeting, len(self._leaders))
                arrivals = _Arrivals(listeners, self._secret)
                stack.callback(arrivals.close)
                where = self._collect("link", " ".join(arrivals.addresses(own)).encode())
                for leader, told in zip(self._leaders, where, strict=True):
                    if reason := refusal(told):
                        raise EnvironmentUnfit(f"the workers of {leader.host} cannot share memory: {reason}")
                for host in range(self._mine):
                    self._join(host, where[host].decode().split(), fabric)
                while missing := [h for h in range(self._mine + 1, len(self._leaders)) if self._sockets[h] < 0]:
                    self._let_in(arrivals, missing, fabric)
            self._collect("linked", b"1")  # nobody writes before everybody has read the last of the above
        except BaseException:
            for sock in self._sockets:
                if sock >= 0:
                    os.close(sock)
            raise
        return self._sockets, b"".join(self._keys), self._fabrics

    def _keep(self, channel: Channel, mine_first: bytes, other: _Greeting) -> None:
        host, theirs = other.host, other.nonce
        low, high = (mine_first, theirs) if self._mine < host else (theirs, mine_first)
        up, down = (
            hashlib.blake2b(low + high + way, key=self._secret, digest_size=32).digest() for way in (b"up", b"down")
        )
        sock = channel.detach()
        if self._sockets[host] >= 0:  # it began again: only its last connection counts
            os.close(self._sockets[host])
        self._sockets[host], self._fabrics[host] = sock, other.fabric
        self._keys[host] = up + down if self._mine < host else down + up

    def _join(self, host: int, where: Sequence[str], fabric: bytes) -> None:
        """Connect to the leader of a host before this one. It may go at any moment, which we are told of."""
        while True:
            channel = self._reach(host, where)
            nonce = os.urandom(_NONCE_BYTES)
            try:
                channel.send(msgspec.msgpack.encode(_Greeting(self._mine, nonce, fabric)), timeout_s=_HANDSHAKE_S)
                answer = msgspec.msgpack.decode(channel.receive(timeout_s=_HANDSHAKE_S), type=_Greeting)
                self._keep(channel, nonce, answer)
                return
            except (WireError, msgspec.DecodeError) as error:
                channel.close()
                if self._left_s() <= 0:
                    raise self._failure(host, f"{self._leaders[host]} hung up while the hosts connected") from error
                time.sleep(_AGAIN_S)

    def _let_in(self, arrivals: _Arrivals, missing: Sequence[int], fabric: bytes) -> None:
        """Those leaders that have come."""
        if self._left_s() <= 0:
            leader = self._leaders[missing[0]]
            raise self._failure(missing[0], f"{leader} did not reach {self._leaders[self._mine].host} in time")
        for channel, said in arrivals.wait(_LOOK_S):
            nonce = os.urandom(_NONCE_BYTES)
            try:
                greeting = msgspec.msgpack.decode(said, type=_Greeting)
                if self._mine < greeting.host < len(self._leaders):
                    channel.send(msgspec.msgpack.encode(_Greeting(self._mine, nonce, fabric)), timeout_s=_HANDSHAKE_S)
                    self._keep(channel, nonce, greeting)
                    continue
            except (WireError, msgspec.DecodeError):
                pass
            channel.close()

    def _left_s(self) -> float:
        """Until we give up. Raises PeerLostError if somebody has died: then it will not come to anything."""
        if (died := self._backend.died) is not None:
            peer = self._meeting.peers[died.rank]
            raise PeerLostError(
                f"{peer} died while the hosts connected to each other: {died.status}",
                rank=died.rank, host=peer.host, pid=peer.pid, status=died.status,
            )  # fmt: skip
        return self._deadline - time.monotonic()

    def _collect(self, what: str, mine: bytes) -> list[bytes]:
        """What each leader says under that name. The first puts it together, so that nobody asks for each: with a
        thousand hosts that would be a million questions."""
        line, generation = self._meeting.channel, self._meeting.generation
        line.store_set(generation, f"{what}/{self._mine}", mine)
        if self._mine:
            told = self._told(f"{what} of all", 0)
            return msgspec.msgpack.decode(told, type=list[bytes])
        everything = [self._told(f"{what}/{host}", host) for host in range(len(self._leaders))]
        line.store_set(generation, f"{what} of all", msgspec.msgpack.encode(everything))
        return everything

    def _told(self, key: str, host: int) -> bytes:
        """What this host's leader says; the first, of all, waits as long for the others as they do for it."""
        line, generation = self._meeting.channel, self._meeting.generation
        wait_s = max(0.1, self._left_s()) + (_AFTER_S if self._mine else 0.0)
        told = line.store_get(generation, key, wait_s, lambda: self._backend.died is not None)
        if told is None:
            self._left_s()
            raise self._failure(host, f"{self._leaders[host]} did not get on with connecting the hosts in time ({key})")
        return told

    def _reach(self, host: int, where: Sequence[str]) -> Channel:
        leader = self._leaders[host]
        while True:
            left_s = max(0.1, self._left_s())
            try:
                return reach(where, self._secret, timeout_s=min(left_s, _TRY_S))
            except Unreachable as error:
                if left_s <= _TRY_S:
                    here = self._leaders[self._mine].host
                    text = f"{here} could not reach {leader}: {error}"
                    if self._elastic:
                        raise self._failure(host, text) from error
                    raise EnvironmentUnfit(
                        f"{text}.\nThe hosts must reach each other by TCP: look at firewalls, and choose the network "
                        "with --network-interfaces."
                    ) from error
                time.sleep(_AGAIN_S)

    def _failure(self, host: int, text: str) -> HoraError:
        """That a leader did not come: in an elastic job it is given up, and the others go on."""
        if not self._elastic:
            return StallError(f"{text}. Look at what it did instead.")
        leader = self._leaders[host]
        line, generation = self._meeting.channel, self._meeting.generation
        with contextlib.suppress(WireError):
            line.send(GivenUp(generation, leader.rank, text, host=True))
        return PeerLostError(text, rank=leader.rank, host=leader.host, pid=leader.pid, status="it cannot be reached")


class _Arrivals:
    """Whoever connects: many at once may be about to prove that they are leaders, so that none holds up the others."""

    def __init__(self, listeners: Sequence[socket.socket], secret: bytes) -> None:
        self._secret, self._selector = secret, selectors.DefaultSelector()
        self._since: dict[Channel, float] = {}
        self._listeners = listeners
        for listener in listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ)

    def addresses(self, own: str) -> list[str]:
        """Where it listens; and where others reach this host, if that is by an address that is not its own."""
        names = [listener.getsockname() for listener in self._listeners]
        found = [join(ip_of(name), name[1]) for name in names]
        return found + [join(own, name[1]) for name in names if own]

    def wait(self, timeout_s: float) -> list[tuple[Channel, bytes]]:
        """Those that have proved themselves by now, and what they said first. They are the caller's."""
        found = []
        for key, _ in self._selector.select(timeout_s):
            if isinstance(key.fileobj, socket.socket):
                self._accept(key.fileobj)
                continue
            channel: Any = key.fileobj
            try:
                said = channel.receive(timeout_s=0.0)
            except WireTimeout:  # more is to come
                continue
            except WireError:
                self._send_away(channel)
                continue
            self._forget(channel)
            found.append((channel, said))
        for channel, since in list(self._since.items()):
            if time.monotonic() - since > _HANDSHAKE_S:
                self._send_away(channel)
        return found

    def close(self) -> None:
        for channel in list(self._since):
            self._send_away(channel)
        for listener in self._listeners:
            listener.close()
        self._selector.close()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError, WireError):  # it is gone already
            sock, _ = listener.accept()
            if len(self._since) >= _MOST_UNPROVEN:  # a leader takes moments
                self._send_away(min(self._since, key=self._since.__getitem__))
            tune_tcp(sock)
            channel = Channel(sock, self._secret, "hub")
            self._since[channel] = time.monotonic()
            self._selector.register(channel, selectors.EVENT_READ)

    def _forget(self, channel: Channel) -> None:
        self._selector.unregister(channel)
        del self._since[channel]

    def _send_away(self, channel: Channel) -> None:
        self._forget(channel)
        channel.close()


def _listen(leader: Peer, meeting: Meeting, backlog: int) -> tuple[list[socket.socket], str]:
    """On the one address that the others use, if that is known and this host's own; else on all that they might, and
    the one that they use, which is another's then."""
    named = meeting.settings.gloo_iface
    if leader.address and not named:
        with contextlib.suppress(OSError):
            return [listen_tcp([leader.address], backlog + _MOST_UNPROVEN)], ""
    listeners = listen_on(candidates(named.split(",") if named else []), backlog + _MOST_UNPROVEN)
    return listeners, "" if named else leader.address
