"""Sockets to listen on: a Unix socket that only this user's processes can connect to, or a TCP port.

Who connects over TCP is not trusted before it has proved that it knows the job's secret (``wire.frame``).
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import struct
from collections.abc import Sequence
from pathlib import Path

__all__ = ["ip_of", "listen_on", "listen_tcp", "listen_unix", "peer_of", "tune_tcp"]


def listen_unix(path: Path, backlog: int) -> socket.socket:
    """Listen at ``path``, in a directory that is this user's alone; whatever was there before is replaced.

    Raises OSError, in particular PermissionError if others could get at the directory.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory = path.parent.lstat()
    if directory.st_uid != os.getuid() or directory.st_mode & 0o077:
        raise PermissionError(f"{path.parent} must be this user's alone (mode 0700), or others could listen in")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        unnamed = path.with_name(f"{path.name}.{os.getpid()}")
        listener.bind(str(unnamed))
        unnamed.chmod(0o600)
        listener.listen(backlog)
        unnamed.rename(path)  # nobody sees the name before it answers
    except OSError:
        listener.close()
        raise
    return listener


def peer_of(sock: socket.socket) -> tuple[int, int]:
    """The process and user at the other end of a Unix socket, as the kernel knows them.

    >>> a, b = socket.socketpair()
    >>> peer_of(a) == (os.getpid(), os.getuid())
    True
    >>> a.close(), b.close()
    (None, None)
    """
    pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return pid, uid


def listen_tcp(addresses: Sequence[str] = (), backlog: int = 128) -> socket.socket:
    """Listen on a port that the kernel chooses: on this one address, or on all if none or several are given.

    >>> with listen_tcp(["127.0.0.1"]) as listener:
    ...     listener.getsockname()[0]
    '127.0.0.1'
    """
    if len(addresses) == 1:
        family = socket.AF_INET6 if ":" in addresses[0] else socket.AF_INET
        return socket.create_server((addresses[0], 0), family=family, backlog=backlog)
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # compiled in, but switched off
            return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=backlog)
    return socket.create_server(("", 0), backlog=backlog)


def listen_on(addresses: Sequence[str], backlog: int = 128) -> list[socket.socket]:
    """One socket for each address, and on no other. An address that is gone meanwhile is left out, unless all are.

    >>> (listener,) = listen_on(["127.0.0.1"])
    >>> with listener:
    ...     ip_of(listener.getsockname())
    '127.0.0.1'
    """
    listeners: list[socket.socket] = []
    failure: OSError | None = None
    for address in addresses:
        try:
            listeners.append(listen_tcp([address], backlog))
        except OSError as error:
            failure = error
    if failure is not None and not listeners:
        raise failure
    return listeners


def tune_tcp(sock: socket.socket, silence_s: float = 10.0) -> None:
    """Send small messages at once, and notice after ``silence_s`` that the other host is gone."""
    third_s = max(1, round(silence_s / 3))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", third_s),
        ("TCP_KEEPINTVL", third_s),
        ("TCP_KEEPCNT", 2),
        ("TCP_USER_TIMEOUT", round(silence_s * 1000)),
    ):
        if hasattr(socket, name):  # not everywhere
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def ip_of(name: tuple[str, int] | tuple[str, int, int, int]) -> str:
    """The address in what ``getpeername`` or ``getsockname`` says.

    >>> ip_of(("::ffff:10.0.0.1", 40123, 0, 0)), ip_of(("10.0.0.2", 40123))
    ('10.0.0.1', '10.0.0.2')
    """
    address = ipaddress.ip_address(name[0].partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
