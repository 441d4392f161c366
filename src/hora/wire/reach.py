"""Reaching a process that listens on TCP: all its addresses at once, keeping the first that answers and has the secret.

An address may be another machine's as well (the private networks of two hosts are often numbered alike), so an address
that connects but cannot prove that it knows the secret is passed over like one that refuses.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import time
from collections.abc import Mapping, Sequence

from hora.wire.addresses import split
from hora.wire.door import tune_tcp
from hora.wire.frame import Channel, Role, WireError

__all__ = ["Unreachable", "reach"]

_PROOF_S = 5.0  # for an address that connected to show that it is the right one


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
    with contextlib.ExitStack() as unused, selectors.DefaultSelector() as selector:
        for address in addresses:
            try:
                selector.register(unused.enter_context(_dial(address)), selectors.EVENT_WRITE, address)
            except (OSError, ValueError) as error:
                failures[address] = _reason(error)
        while selector.get_map() and (left_s := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left_s):
                sock, address = key.fileobj, key.data
                assert isinstance(sock, socket.socket)
                selector.unregister(sock)
                try:
                    if code := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                        raise OSError(code, os.strerror(code))
                    tune_tcp(sock)
                    mine = sock.dup()
                    channel = Channel(mine, secret, role)
                    try:
                        channel.prove(timeout_s=min(_PROOF_S, max(0.1, deadline - time.monotonic())))
                    except WireError:
                        channel.close()
                        raise
                    return channel
                except OSError as error:
                    failures[address] = _reason(error)
                except WireError as error:
                    failures[address] = f"it answers, but is not this job's: {error}"
    raise Unreachable(failures)


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
