"""Tries the system calls that Hora uses and prints what came of them as JSON: ``python -m hora.lab.doctor.syscalls``.

A process of its own, because a sandbox may kill whoever makes a call that it does not like.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import tempfile
from collections.abc import Callable

__all__ = ["CALLS", "attempt"]


def _memfd() -> None:
    os.close(os.memfd_create("hora-doctor"))


def _pidfd() -> None:
    os.close(os.pidfd_open(os.getpid()))


def _futex() -> None:
    """Wake nobody on a word; the number of the call differs between processors."""
    numbers = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}
    number = numbers.get(os.uname().machine)
    if number is None:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    word = ctypes.c_uint32(0)
    if libc.syscall(number, ctypes.byref(word), 1, 1, None, None, 0) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _descriptor_of_another() -> None:
    """Open a descriptor of a process that is not a child of the opener, as workers of one host do."""
    with tempfile.TemporaryFile() as file:
        path = f"/proc/{os.getpid()}/fd/{file.fileno()}"
        child = os.fork()
        if child == 0:
            try:
                os.close(os.open(path, os.O_RDWR))
            except OSError as error:
                os._exit(error.errno or 1)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        raise OSError(code, os.strerror(code) if code > 0 else f"signal {-code}")


def _descriptor_passing() -> None:
    import socket

    near, far = socket.socketpair()
    with near, far:
        socket.send_fds(near, [b"x"], [near.fileno()])
        for fd in socket.recv_fds(far, 1, 1)[1]:
            os.close(fd)


CALLS: dict[str, Callable[[], None]] = {
    "memfd_create": _memfd,
    "pidfd_open": _pidfd,
    "futex": _futex,
    "SCM_RIGHTS": _descriptor_passing,
    "/proc/PID/fd": _descriptor_of_another,
}


def attempt(call: Callable[[], None]) -> str:
    """Why a call does not work; empty if it does.

    >>> attempt(lambda: None)
    ''
    """
    try:
        call()
    except (OSError, AttributeError) as error:
        return getattr(error, "strerror", None) or str(error)
    return ""


if __name__ == "__main__":
    for name, call in CALLS.items():
        json.dump({name: attempt(call)}, sys.stdout)
        print(flush=True)
