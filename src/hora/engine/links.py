"""A generation on several hosts: the table of each host, and the connections between their leaders.

The lowest rank of each host is its leader. It makes the host's memory, shows it to the others of the host, and has a
connection to every other leader. Both ends of a connection prove that they know the job's secret (``wire.frame``); then
it belongs to the C core, with a key of its own, and Python has nothing more to do with it.

What cannot be known inside the core comes by the line to the hub: who died, and what every host knows of operations
that wait, for stall and deadlock reports.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import socket
import time
from collections.abc import Sequence

import msgspec

from hora.engine.backend import NotFinite, Pending, Snapshot
from hora.engine.circle import look_every_s
from hora.engine.hosttable import make_segment, open_segment, refusal
from hora.engine.meet import Meeting
from hora.engine.snapshot import pack, unpack
from hora.engine.table import TableBackend
from hora.engine.tablefault import Status
from hora.errors import EnvironmentUnfit, StallError
from hora.wire.addresses import candidates, join
from hora.wire.door import listen_tcp, tune_tcp
from hora.wire.frame import Channel, WireError
from hora.wire.messages import AnyMessage, Died, GivenUp, LastWords, Peer, Refused, StateAsk, StateReply, Verdict
from hora.wire.reach import Unreachable, reach

__all__ = ["HostsBackend", "start"]

_NONCE_BYTES = 32
_HANDSHAKE_S = 10.0
_SNAPSHOT_S = 3.0
_LINGER_S = 10.0
_SLICE_US = 200_000
_OLD_S = 0.5  # an operation that is younger was submitted after the verdict on it
_WORDS_CHARACTERS = 8192


class _Greeting(msgspec.Struct, frozen=True, array_like=True):
    """What the ends of a new connection tell each other."""

    host: int
    nonce: bytes


class HostsBackend(TableBackend):
    """``engine.backend.Backend`` on several hosts: the table's, with others to ask about what is elsewhere."""

    finds_not_finite = False  # a sum between hosts does not say who brought inf or nan
    narrows = True

    def __init__(self, meeting: Meeting, fd: int, leads: bool) -> None:
        super().__init__(fd, meeting.rank, meeting.peers, meeting.settings, meeting.generation, meeting.channel)
        self._meeting, self._leads = meeting, leads
        meeting.channel.subscribe(self._hear, self._lost)

    def link(self, sockets: Sequence[int], keys: bytes) -> None:
        """Give the core its connections, by host, and for each the keys of both directions."""
        if error := self._lib.link(self._core, (ctypes.c_int32 * len(sockets))(*sockets), keys):
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
        verdict = Verdict(self._generation, pending.name, pending.members, pending.missing, kind, text)
        with contextlib.suppress(WireError):  # then everything fails anyway
            self._line.send(verdict)

    def _fail_here(self, verdict: Verdict) -> None:
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
                break
        super().close()

    def _not_finite(self, number: int) -> tuple[NotFinite, ...]:
        return ()  # small operations could say; but who asks has to look at large ones in any case

    # ---- the line's thread ----

    def _hear(self, message: AnyMessage) -> None:
        core = self._core
        if not core:
            return
        match message:
            case Died(rank=rank, status=status, words=words):
                if words:
                    self._lib.say(core, rank, words.encode())
                self._lib.mark_dead(core, rank, status.encode())
            case Verdict() if self._leads:
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


def start(meeting: Meeting) -> HostsBackend:
    """The backend of this rank, connected."""
    peers, rank, generation, line = meeting.peers, meeting.rank, meeting.generation, meeting.channel
    hosts = list(dict.fromkeys(peer.host for peer in peers))
    host_of = [hosts.index(peer.host) for peer in peers]
    mine = host_of[rank]
    leaders = [host_of.index(host) for host in range(len(hosts))]
    leads = leaders[mine] == rank
    if not leads:
        where = line.store_get(generation, f"shm/{mine}", meeting.settings.start_timeout_s)
        fd = open_segment(where, peers[leaders[mine]])
        try:
            return HostsBackend(meeting, fd, leads)
        finally:
            os.close(fd)
    segment, shown = make_segment(len(peers), generation, meeting.settings, host_of, mine)
    line.store_set(generation, f"shm/{mine}", shown)
    if segment is None:
        line.store_set(generation, f"link/{mine}", shown)
        raise EnvironmentUnfit(f"the workers of {hosts[mine]} cannot share memory: {refusal(shown)}")
    backend = HostsBackend(meeting, segment.fd, leads)
    backend.segment = segment
    try:
        backend.link(*_connect(meeting, [peers[leader] for leader in leaders], mine))
    except BaseException:
        backend.close()
        raise
    return backend


def _connect(meeting: Meeting, leaders: Sequence[Peer], mine: int) -> tuple[list[int], bytes]:
    """A connection to each of the other leaders, by host (-1: this one), and the keys of both directions."""
    line, generation = meeting.channel, meeting.generation
    secret = line.key_for(f"links of generation {generation}")
    deadline = time.monotonic() + meeting.settings.start_deadline_s(len(leaders))
    sockets, keys = [-1] * len(leaders), [bytes(64)] * len(leaders)

    def keep(channel: Channel, host: int, mine_first: bytes, theirs: bytes) -> None:
        low, high = (mine_first, theirs) if mine < host else (theirs, mine_first)
        up, down = (hashlib.blake2b(low + high + way, key=secret, digest_size=32).digest() for way in (b"up", b"down"))
        keys[host] = up + down if mine < host else down + up
        sockets[host] = channel.detach()

    with _listen(leaders[mine], meeting) as listener:
        port = listener.getsockname()[1]
        interfaces = meeting.settings.gloo_iface.split(",") if meeting.settings.gloo_iface else []
        own = leaders[mine].address
        addresses = [own] if own and not interfaces else candidates(interfaces)
        line.store_set(generation, f"link/{mine}", " ".join(join(address, port) for address in addresses).encode())
        for host in range(mine):
            told = line.store_get(generation, f"link/{host}", max(0.1, deadline - time.monotonic()))
            if told is None:
                raise StallError(f"{leaders[host]} did not say where it can be reached.")
            if reason := refusal(told):
                raise EnvironmentUnfit(f"the workers of {leaders[host].host} cannot share memory: {reason}")
            try:
                channel = reach(told.decode().split(), secret, timeout_s=max(0.1, deadline - time.monotonic()))
            except Unreachable as error:
                raise EnvironmentUnfit(
                    f"{leaders[mine].host} could not reach {leaders[host]}: {error}.\nThe hosts must reach each other "
                    "by TCP: look at firewalls, and choose the network with --network-interfaces."
                ) from error
            nonce = os.urandom(_NONCE_BYTES)
            channel.send(msgspec.msgpack.encode(_Greeting(mine, nonce)), timeout_s=_HANDSHAKE_S)
            answer = msgspec.msgpack.decode(channel.receive(timeout_s=_HANDSHAKE_S), type=_Greeting)
            keep(channel, host, nonce, answer.nonce)
        while any(sockets[host] < 0 for host in range(mine + 1, len(leaders))):
            channel, greeting = _accept(listener, secret, deadline, leaders)
            nonce = os.urandom(_NONCE_BYTES)
            channel.send(msgspec.msgpack.encode(_Greeting(mine, nonce)), timeout_s=_HANDSHAKE_S)
            keep(channel, greeting.host, nonce, greeting.nonce)
    # Nobody writes before everybody has read the last of the above.
    line.store_set(generation, f"linked/{mine}", b"1")
    for host in range(len(leaders)):
        if line.store_get(generation, f"linked/{host}", max(0.1, deadline - time.monotonic())) is None:
            raise StallError(f"{leaders[host]} did not connect to the other hosts in time.")
    return sockets, b"".join(keys)


def _listen(leader: Peer, meeting: Meeting) -> socket.socket:
    """On the one address that the others use, if that is known and this host's own."""
    if leader.address and not meeting.settings.gloo_iface:
        with contextlib.suppress(OSError):
            return listen_tcp([leader.address])
    return listen_tcp()


def _accept(
    listener: socket.socket, secret: bytes, deadline: float, leaders: Sequence[Peer]
) -> tuple[Channel, _Greeting]:
    """The next leader that comes; whoever cannot prove to be one is sent away."""
    while (left_s := deadline - time.monotonic()) > 0:
        listener.settimeout(left_s)
        try:
            sock, _ = listener.accept()
        except TimeoutError:
            break
        tune_tcp(sock)
        channel = Channel(sock, secret, "hub")
        try:
            channel.prove(timeout_s=min(_HANDSHAKE_S, left_s))
            greeting = msgspec.msgpack.decode(channel.receive(timeout_s=_HANDSHAKE_S), type=_Greeting)
        except (WireError, msgspec.DecodeError):
            channel.close()
            continue
        if 0 <= greeting.host < len(leaders):
            return channel, greeting
        channel.close()
    raise StallError("the leader of another host did not connect in time.")
