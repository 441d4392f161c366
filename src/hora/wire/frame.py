"""Frames: authenticated, length-capped messages over a stream socket; owns everything between bytes and payloads.

Both ends know the job's secret. Each sends a fresh nonce; two keys, one per direction, are derived from the secret and
both nonces; the first frame in each direction proves that its sender derived the same. A frame is::

    length (4 bytes, big endian) | payload | HMAC-SHA256(key, sequence number, length, payload)

The sequence number is counted, never sent, so that a frame replayed, dropped, reordered, reflected or carried over from
another connection does not authenticate. Nothing is parsed before its code is checked, at most one frame of
``max_bytes`` is buffered, and whatever a hostile or broken peer does ends in one :class:`WireError`.

Three layers: :class:`Codec` has no I/O, :class:`Endpoint` is a codec on a non-blocking socket (for an event loop), and
:class:`Channel` is an endpoint whose calls block, each with a deadline. Payloads are authenticated, not encrypted.
"""

from __future__ import annotations

import array
import contextlib
import hmac
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Literal, NamedTuple

from hora.errors import HoraError

__all__ = [
    "MAX_FRAME_BYTES", "SECRET_BYTES", "Channel", "Chunk", "Codec", "Endpoint", "Role", "WireClosed", "WireError",
    "WireTimeout", "WireTooLarge",
]  # fmt: skip

SECRET_BYTES = 32
MAX_FRAME_BYTES = 16 * 2**20
MAX_DESCRIPTORS = 4

_MAGIC = b"HORA1"
_NONCE_BYTES = 32
_LENGTH_BYTES = 4
_CODE_BYTES = 32
_PROOF = b"proof"
_READ_BYTES = 256 * 2**10

Role = Literal["hub", "worker"]


class WireError(HoraError):
    """The other end of a connection broke the protocol, has another key, or is gone."""


class WireClosed(WireError):
    """The other end closed the connection."""


class WireTimeout(WireError):
    """The other end did not read or write in time."""


class WireTooLarge(WireError):
    """What was to be sent does not fit in a frame; nothing was sent, and the connection is as it was."""


class Chunk(NamedTuple):
    """Bytes to write; ``descriptors`` travel with the first of them."""

    data: memoryview
    descriptors: tuple[int, ...] = ()


class Codec:
    """Bytes to payloads and back, with no I/O.

    >>> hub, worker = Codec(b"k" * 32, "hub"), Codec(b"k" * 32, "worker")
    >>> worker.send(b"hello")
    >>> def shuttle(source, target):
    ...     return [p for chunk in source.outgoing() for p in target.receive(bytes(chunk.data))]
    >>> shuttle(worker, hub), shuttle(hub, worker), shuttle(worker, hub)
    ([], [], [b'hello'])
    """

    def __init__(self, secret: bytes, role: Role, *, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._secret, self._role, self._max_bytes = secret, role, max_bytes
        self._peer: Role = "worker" if role == "hub" else "hub"
        self._nonce = os.urandom(_NONCE_BYTES)
        self._inbound = bytearray()
        self._outbound: deque[Chunk] = deque([Chunk(memoryview(_hail(role) + self._nonce))])
        self._early: list[tuple[bytes, tuple[int, ...]]] = []  # sent before the keys were known
        self._keys: tuple[bytes, bytes] | None = None  # (ours, the peer's)
        self._sent = self._received = 0

    @property
    def proven(self) -> bool:
        """Whether the peer has shown that it knows the secret."""
        return self._received > 0

    @property
    def partial(self) -> bool:
        """Whether the start of something has come in whose end has not."""
        return bool(self._inbound)

    def key_for(self, use: str) -> bytes:
        """A key for something else than frames, the same for all who know the secret, and another for every use."""
        return hmac.digest(self._secret, b"key for " + use.encode(), "sha256")

    def send(self, payload: bytes, descriptors: tuple[int, ...] = ()) -> None:
        """Queue one payload, with open file descriptors for a Unix socket to carry along."""
        if len(payload) > self._max_bytes:
            raise WireTooLarge(
                f"a message of {len(payload)} bytes exceeds the limit of {self._max_bytes} bytes per frame"
            )
        if self._keys is None:
            self._early.append((payload, descriptors))
            return
        length = len(payload).to_bytes(_LENGTH_BYTES, "big")
        code = _code(self._keys[0], self._sent, length, payload)
        self._sent += 1
        self._outbound.append(Chunk(memoryview(length + payload + code), descriptors))

    def outgoing(self) -> deque[Chunk]:
        """Take what is to be written to the peer."""
        taken, self._outbound = self._outbound, deque()
        return taken

    def receive(self, data: bytes) -> list[bytes]:
        """Take in bytes from the peer; returns the payloads that are now whole. After a WireError, hang up."""
        self._inbound += data
        if self._keys is None and not self._greet():
            return []
        payloads = []
        while (payload := self._next_payload()) is not None:
            if self._received == 1:
                if payload != _PROOF:
                    raise WireError("the peer's first frame is not the proof that it knows the job's secret")
                continue
            payloads.append(payload)
        return payloads

    def _greet(self) -> bool:
        expected = _hail(self._peer)
        if not expected.startswith(self._inbound[: len(expected)]):
            raise WireError("the peer does not speak Hora's protocol, or another version of it")
        size = len(expected) + _NONCE_BYTES
        if len(self._inbound) < size:
            return False
        theirs = bytes(self._inbound[len(expected) : size])
        del self._inbound[:size]
        nonces = self._nonce + theirs if self._role == "worker" else theirs + self._nonce
        ours, peers = (hmac.digest(self._secret, _hail(r) + nonces, "sha256") for r in (self._role, self._peer))
        self._keys = (ours, peers)
        self.send(_PROOF)
        for payload, descriptors in self._early:
            self.send(payload, descriptors)
        self._early.clear()
        return True

    def _next_payload(self) -> bytes | None:
        assert self._keys is not None
        buffer = self._inbound
        if len(buffer) < _LENGTH_BYTES:
            return None
        length = int.from_bytes(buffer[:_LENGTH_BYTES], "big")
        limit = self._max_bytes if self._received else len(_PROOF)  # nobody unproven makes us buffer anything
        if length > limit:
            raise WireError(f"a frame announces {length} bytes, the limit is {limit}")
        size = _LENGTH_BYTES + length + _CODE_BYTES
        if len(buffer) < size:
            return None
        head, payload = bytes(buffer[:_LENGTH_BYTES]), bytes(buffer[_LENGTH_BYTES : _LENGTH_BYTES + length])
        expected = _code(self._keys[1], self._received, head, payload)
        if not hmac.compare_digest(expected, buffer[size - _CODE_BYTES : size]):
            raise WireError(
                "a frame does not authenticate: it was altered, replayed or lost"
                if self._received
                else "the peer has another key than this job's secret"
            )
        del buffer[:size]
        self._received += 1
        return payload


def _hail(role: Role) -> bytes:
    return _MAGIC + role[:1].encode()


def _code(key: bytes, sequence: int, length: bytes, payload: bytes) -> bytes:
    return hmac.digest(key, sequence.to_bytes(8, "big") + length + payload, "sha256")


class Endpoint:
    """A codec on a non-blocking stream socket; owns the socket. Not thread-safe."""

    def __init__(self, sock: socket.socket, secret: bytes, role: Role, *, max_bytes: int = MAX_FRAME_BYTES) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._codec = Codec(secret, role, max_bytes=max_bytes)
        self._unwritten: deque[Chunk] = deque()
        self._descriptors: deque[int] = deque()
        self._partial_since: float | None = None
        self.ended = False

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def proven(self) -> bool:
        return self._codec.proven

    @property
    def backlog_bytes(self) -> int:
        """How much is queued that the peer has not made room for."""
        self._unwritten += self._codec.outgoing()
        return sum(len(chunk.data) for chunk in self._unwritten)

    @property
    def partial_since(self) -> float | None:
        """Since when (monotonic) the peer has owed us the rest of a frame."""
        return self._partial_since

    def key_for(self, use: str) -> bytes:
        return self._codec.key_for(use)

    def queue(self, payload: bytes, descriptors: tuple[int, ...] = ()) -> None:
        self._codec.send(payload, descriptors)

    def write(self) -> bool:
        """Write what the socket takes; True when nothing is left."""
        self._unwritten += self._codec.outgoing()
        while self._unwritten:
            data, descriptors = self._unwritten[0]
            try:
                if descriptors:
                    rights = array.array("i", descriptors).tobytes()
                    count = self._sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
                else:
                    count = self._sock.send(data)
            except (BlockingIOError, InterruptedError):
                return False
            except OSError as error:
                raise WireClosed(f"the connection broke while writing: {error}") from error
            if count == len(data):
                self._unwritten.popleft()
            else:
                self._unwritten[0] = Chunk(data[count:])
        return True

    def read(self) -> list[bytes]:
        """Payloads that have come in, without blocking; ``ended`` turns True when the peer has closed."""
        try:
            if self._sock.family == socket.AF_UNIX:
                data, rights, _, _ = self._sock.recvmsg(_READ_BYTES, socket.CMSG_SPACE(MAX_DESCRIPTORS * 4))
                self._keep(rights)
            else:
                data = self._sock.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError as error:
            raise WireClosed(f"the connection broke while reading: {error}") from error
        if not data:
            self.ended = True
            return []
        payloads = self._codec.receive(data)
        if not self._codec.partial:
            self._partial_since = None
        elif self._partial_since is None or payloads:
            self._partial_since = time.monotonic()
        return payloads

    def take_descriptor(self) -> int:
        """The next file descriptor the peer passed; the caller owns it."""
        if not self._descriptors:
            raise WireError("a message announced a file descriptor that did not come with it")
        return self._descriptors.popleft()

    def close(self) -> None:
        self._sock.close()
        while self._descriptors:
            os.close(self._descriptors.popleft())

    def _keep(self, rights: Iterable[tuple[int, int, bytes]]) -> None:
        for level, kind, data in rights:
            if (level, kind) != (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                continue
            received = array.array("i")
            received.frombytes(data[: len(data) - len(data) % received.itemsize])
            for descriptor in received:
                os.set_inheritable(descriptor, False)
                self._descriptors.append(descriptor)
        if len(self._descriptors) > MAX_DESCRIPTORS:
            raise WireError(f"the peer passed more than {MAX_DESCRIPTORS} file descriptors")


class Channel:
    """An endpoint whose calls block, each with a deadline. One thread may receive while others send."""

    def __init__(self, sock: socket.socket, secret: bytes, role: Role, *, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._endpoint = Endpoint(sock, secret, role, max_bytes=max_bytes)
        self._sock = sock
        self._writing = threading.Lock()
        self._received: deque[bytes] = deque()
        self._endpoint.write()  # the greeting; a fresh socket has room for it

    def fileno(self) -> int:
        return self._endpoint.fileno()

    def key_for(self, use: str) -> bytes:
        """A key of the job's for something else than frames; see ``Codec``."""
        return self._endpoint.key_for(use)

    def send(self, payload: bytes, *, timeout_s: float, descriptors: tuple[int, ...] = ()) -> None:
        """Write one payload; raises WireTimeout if the peer does not read, WireClosed if it is gone."""
        with self._writing:
            self._endpoint.queue(payload, descriptors)
            self._flush(time.monotonic() + timeout_s)

    def receive(self, *, timeout_s: float) -> bytes:
        """The next payload; raises WireTimeout after ``timeout_s``, WireClosed when the peer has closed."""
        deadline = time.monotonic() + timeout_s
        while not self._received:
            self._poll(select.POLLIN, deadline, "sent nothing")
            if self._endpoint.proven:
                self._received += self._endpoint.read()
            else:  # the greeting has to be answered, and opens the way for what was sent early
                with self._writing:
                    self._received += self._endpoint.read()
                    self._flush(deadline)
            if self._endpoint.ended and not self._received:
                raise WireClosed("the peer closed the connection")
        return self._received.popleft()

    def prove(self, *, timeout_s: float) -> None:
        """Wait until the peer has shown that it knows the secret; raises WireError if it does not."""
        deadline = time.monotonic() + timeout_s
        while not self._endpoint.proven:
            self._poll(select.POLLIN, deadline, "sent nothing")
            with self._writing:
                self._received += self._endpoint.read()
                self._flush(deadline)
            if self._endpoint.ended:
                raise WireClosed("the peer closed the connection")

    @property
    def buffered(self) -> bool:
        """Whether ``receive`` has something at hand that the socket no longer shows."""
        return bool(self._received)

    def take_descriptor(self) -> int:
        """The next file descriptor the peer passed; the caller owns it."""
        return self._endpoint.take_descriptor()

    def detach(self) -> int:
        """The descriptor of the socket, which is the caller's from now on; nothing may have come that was not read."""
        if self._received or self._endpoint.partial_since is not None:
            raise WireError("the peer sent data before it was asked to")
        return self._sock.detach()

    def close(self) -> None:
        """Close, and wake whoever is blocked in ``receive``."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._endpoint.close()

    def _flush(self, deadline: float) -> None:
        while not self._endpoint.write():
            self._poll(select.POLLOUT, deadline, "read nothing")

    def _poll(self, event: int, deadline: float, complaint: str) -> None:
        descriptor = self.fileno()
        if descriptor < 0:
            raise WireClosed("this end of the connection is closed")
        poller = select.poll()
        poller.register(descriptor, event)
        left_s = max(0.0, deadline - time.monotonic())
        if not poller.poll(left_s * 1000):
            raise WireTimeout(f"the peer {complaint} within the time allowed")
