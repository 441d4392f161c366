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
import socket
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from hora.engine.backend import Pending, Snapshot
from hora.engine.coordinator import look_every_s
from hora.engine.hosttable import make_segment, open_segment, refusal, shared_by
from hora.engine.meet import Meeting
from hora.engine.snapshot import pack, unpack
from hora.engine.table import TableBackend
from hora.engine.tablefault import Status
from hora.errors import EnvironmentUnfit, PeerLostError, StallError
from hora.transport import shm
from hora.transport.fabric import Fabric
from hora.wire.addresses import candidates, join
from hora.wire.frame import Channel, WireError
from hora.wire.listen import listen_tcp, tune_tcp
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
_LOOK_S = 0.2
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

    def link(self, sockets: Sequence[int], keys: bytes, fabric: Any = None, addresses: Sequence[bytes] = ()) -> None:
        """Give the core its connections, by host, with the keys of both directions, and what carries in their place."""
        places = (ctypes.c_char_p * len(sockets))(*addresses)
        if error := self._lib.link(self._core, (ctypes.c_int32 * len(sockets))(*sockets), keys, fabric, places):
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
        line.store_set(generation, f"link/{mine}", shown)
        raise EnvironmentUnfit(f"the workers of {hosts[mine]} cannot share memory: {refusal(shown)}")
    backend = HostsBackend(meeting, segment.fd, leads)
    try:
        fabric = Fabric(peers[rank].address or candidates()[0]) if meeting.transport == "shm+ucx" else None
        sockets, keys, addresses = _Connecting(
            meeting, [peers[leader] for leader in leaders], mine, backend, elastic=elastic
        ).connect(fabric)
        backend.link(sockets, keys, fabric.handle if fabric is not None else None, addresses)
    except BaseException:
        backend.close()
        raise
    return backend, segment


class _Connecting:
    """The leaders of a new generation connect to each other."""

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

    def connect(self, fabric: Fabric | None) -> tuple[list[int], bytes, list[bytes]]:
        """A connection to each of the other leaders, by host (-1: this one), the keys of both directions, and where UCX
        reaches it, if there is a fabric: that travels on the connection, so it comes from who it is said to come
        from."""
        meeting, leaders, mine, secret = self._meeting, self._leaders, self._mine, self._secret
        line, generation = meeting.channel, meeting.generation
        sockets, keys, fabrics = [-1] * len(leaders), [bytes(64)] * len(leaders), [b""] * len(leaders)
        own_fabric = fabric.address if fabric is not None else b""

        def keep(channel: Channel, mine_first: bytes, other: _Greeting) -> None:
            host, theirs = other.host, other.nonce
            fabrics[host] = other.fabric
            low, high = (mine_first, theirs) if mine < host else (theirs, mine_first)
            up, down = (
                hashlib.blake2b(low + high + way, key=secret, digest_size=32).digest() for way in (b"up", b"down")
            )
            keys[host] = up + down if mine < host else down + up
            sockets[host] = channel.detach()

        with _listen(leaders[mine], meeting) as listener:
            port = listener.getsockname()[1]
            interfaces = meeting.settings.gloo_iface.split(",") if meeting.settings.gloo_iface else []
            own = leaders[mine].address
            addresses = [own] if own and not interfaces else candidates(interfaces)
            line.store_set(generation, f"link/{mine}", " ".join(join(address, port) for address in addresses).encode())
            for host in range(mine):
                channel = self._reach(host)
                nonce = os.urandom(_NONCE_BYTES)
                channel.send(msgspec.msgpack.encode(_Greeting(mine, nonce, own_fabric)), timeout_s=_HANDSHAKE_S)
                answer = msgspec.msgpack.decode(channel.receive(timeout_s=_HANDSHAKE_S), type=_Greeting)
                keep(channel, nonce, answer)
            while missing := [host for host in range(mine + 1, len(leaders)) if sockets[host] < 0]:
                channel, greeting = self._accept(listener, missing[0])
                nonce = os.urandom(_NONCE_BYTES)
                channel.send(msgspec.msgpack.encode(_Greeting(mine, nonce, own_fabric)), timeout_s=_HANDSHAKE_S)
                keep(channel, nonce, greeting)
        # Nobody writes before everybody has read the last of the above.
        line.store_set(generation, f"linked/{mine}", b"1")
        for host in range(len(leaders)):
            if self._told(f"linked/{host}") is None:
                raise StallError(f"{leaders[host]} did not connect to the other hosts in time.")
        return sockets, b"".join(keys), fabrics

    def _left_s(self) -> float:
        """Until we give up. Raises PeerLostError if somebody has died: then it will not come to anything."""
        if (died := self._backend.died) is not None:
            peer = self._meeting.peers[died.rank]
            raise PeerLostError(
                f"{peer} died while the hosts connected to each other: {died.status}",
                rank=died.rank, host=peer.host, pid=peer.pid, status=died.status,
            )  # fmt: skip
        return self._deadline - time.monotonic()

    def _told(self, key: str) -> bytes | None:
        line, generation = self._meeting.channel, self._meeting.generation
        told = line.store_get(generation, key, max(0.1, self._left_s()), lambda: self._backend.died is not None)
        if told is None:
            self._left_s()
        return told

    def _reach(self, host: int) -> Channel:
        leader = self._leaders[host]
        told = self._told(f"link/{host}")
        if told is None:
            raise StallError(f"{leader} did not say where it can be reached.")
        if reason := refusal(told):
            raise EnvironmentUnfit(f"the workers of {leader.host} cannot share memory: {reason}")
        while True:
            left_s = max(0.1, self._left_s())
            try:
                return reach(told.decode().split(), self._secret, timeout_s=min(left_s, _TRY_S))
            except Unreachable as error:
                if left_s <= _TRY_S:
                    here = self._leaders[self._mine].host
                    text = f"{here} could not reach {leader}: {error}"
                    if self._elastic:
                        raise self._cut_off(leader, text) from error
                    raise EnvironmentUnfit(
                        f"{text}.\nThe hosts must reach each other by TCP: look at firewalls, and choose the network "
                        "with --network-interfaces."
                    ) from error
                time.sleep(_AGAIN_S)

    def _accept(self, listener: socket.socket, missing: int) -> tuple[Channel, _Greeting]:
        """The next leader that comes; whoever cannot prove to be one is sent away."""
        while (left_s := self._left_s()) > 0:
            listener.settimeout(min(left_s, _LOOK_S))
            try:
                sock, _ = listener.accept()
            except TimeoutError:
                continue
            tune_tcp(sock)
            channel = Channel(sock, self._secret, "hub")
            try:
                channel.prove(timeout_s=min(_HANDSHAKE_S, left_s))
                greeting = msgspec.msgpack.decode(channel.receive(timeout_s=_HANDSHAKE_S), type=_Greeting)
            except (WireError, msgspec.DecodeError):
                channel.close()
                continue
            if 0 <= greeting.host < len(self._leaders):
                return channel, greeting
            channel.close()
        if self._elastic:
            leader = self._leaders[missing]
            raise self._cut_off(leader, f"{leader} did not reach {self._leaders[self._mine].host} in time")
        raise StallError("the leader of another host did not connect in time.")

    def _cut_off(self, leader: Peer, text: str) -> PeerLostError:
        line, generation = self._meeting.channel, self._meeting.generation
        with contextlib.suppress(WireError):
            line.send(GivenUp(generation, leader.rank, text, host=True))
        return PeerLostError(text, rank=leader.rank, host=leader.host, pid=leader.pid, status="it cannot be reached")


def _listen(leader: Peer, meeting: Meeting) -> socket.socket:
    """On the one address that the others use, if that is known and this host's own."""
    if leader.address and not meeting.settings.gloo_iface:
        with contextlib.suppress(OSError):
            return listen_tcp([leader.address])
    return listen_tcp()
