"""Connecting to a process by TCP: all its addresses at once, keeping the first that answers and proves the secret.

An address may be another machine's as well (the private networks of two hosts are often numbered alike), so an address
that connects but cannot prove that it knows the secret is passed over like one that refuses. One that hangs up before
it could is tried again as long as there is time: it may be the right one, with too many connections at the moment.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Mapping, Sequence

from hora.wire.addresses import split
from hora.wire.frame import Channel, Role, WireClosed, WireError
from hora.wire.listen import tune_tcp

__all__ = ["Unreachable", "reach"]

_PROOF_S = 5.0  # for an address that connected to show that it is the right one
_AGAIN_S = 0.1


class Unreachable(WireError):
    """No address worked; ``failures`` says what happened with each."""

    def __init__(self, failures: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{address}: {failure}" for address, failure in failures.items()))
        self.failures = dict(failures)


def reach(addresses: Sequence[str], secret: bytes, *, timeout_s: float, role: Role = "worker") -> Channel:
    """A channel to whoever listens at one of these (``host:port``) and knows the secret; raises Unreachable.

    >>> reach(["127.0.0.1:9"], bytes(32), timeout_s=1)
    Traceback (most recent call last):
    hora.wire.reach.Unreachable: 127.0.0.1:9: connection refused
    """
    deadline = time.monotonic() + timeout_s
    failures = dict.fromkeys(addresses, f"no answer within {timeout_s:g} s")
    to_dial = deque((0.0, address) for address in addresses)  # from when on, in this order
    with contextlib.ExitStack() as unused, selectors.DefaultSelector() as selector:
        while (now := time.monotonic()) < deadline and (to_dial or selector.get_map()):
            while to_dial and to_dial[0][0] <= now:
                _, address = to_dial.popleft()
                try:
                    selector.register(unused.enter_context(_dial(address)), selectors.EVENT_WRITE, address)
                except (OSError, ValueError) as error:
                    failures[address] = _reason(error)
            for key, _ in selector.select(min([deadline, *(when for when, _ in to_dial)]) - now):
                sock, address = key.fileobj, key.data
                assert isinstance(sock, socket.socket)
                selector.unregister(sock)
                try:
                    return _prove(sock, secret, role, deadline)
                except OSError as error:
                    failures[address] = _reason(error)
                except WireError as error:
                    failures[address] = f"it answers, but is not this job's: {error}"
                    if isinstance(error, WireClosed):
                        to_dial.append((time.monotonic() + _AGAIN_S, address))
                sock.close()
    raise Unreachable(failures)


def _prove(sock: socket.socket, secret: bytes, role: Role, deadline: float) -> Channel:
    """A channel over what has connected, once the other end has shown that it knows the secret."""
    if code := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        raise OSError(code, os.strerror(code))
    tune_tcp(sock)
    channel = Channel(sock.dup(), secret, role)
    try:
        channel.prove(timeout_s=min(_PROOF_S, max(0.1, deadline - time.monotonic())))
    except WireError:
        channel.close()
        raise
    return channel


def _dial(address: str) -> socket.socket:
    """Begin to connect."""
    host, port = split(address)
    family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, kind, protocol)
    sock.setblocking(False)
    code = sock.connect_ex(where)
    if code not in (0, errno.EINPROGRESS):
        sock.close()
        raise OSError(code, os.strerror(code))
    return sock


def _reason(error: Exception) -> str:
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return text[:1].lower() + text[1:]
