"""The door: a Unix socket that only processes of this user can come through."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

__all__ = ["open_door", "peer_of"]


def open_door(path: Path, backlog: int) -> socket.socket:
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
