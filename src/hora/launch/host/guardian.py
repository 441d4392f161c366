"""A small process that outlives the launcher and ends the workers if the launcher is killed.

The launcher starts it as a plain script and tells it, line by line on its standard input, which process groups belong
to the job (``watch 1234``, ``forget 1234``), and kills it when all is over. If the input ends before, the launcher was
killed, and the guardian ends every process that is in one of the groups or carries the job's cookie in its environment:
workers, their children, and those that escaped into a session of their own.

It imports next to nothing, so that it costs a few milliseconds, and it has a session of its own, so that
signals to the job or to the terminal do not reach it.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Iterator

__all__ = ["COOKIE", "end_job"]

COOKIE = "HORA_JOB"  # the variable that marks every process of a job


def end_job(cookie: str, groups: set[int], *, grace_s: float, deadline_s: float = 10.0) -> int:
    """End every process of the job but this one: SIGTERM, ``grace_s`` to obey, SIGKILL. Returns how many were found."""
    started = time.monotonic()
    found: set[int] = set()
    termed: set[int] = set()
    while True:
        elapsed_s = time.monotonic() - started
        alive = 0
        for pid, pidfd in _members(cookie, groups):
            try:
                found.add(pid)
                alive += 1
                if elapsed_s >= grace_s:
                    _send(pidfd, signal.SIGKILL)
                elif pid not in termed:
                    termed.add(pid)
                    _send(pidfd, signal.SIGTERM)
                    _send(pidfd, signal.SIGCONT)  # a stopped process would not notice
            finally:
                os.close(pidfd)
        if not alive or elapsed_s > deadline_s:
            return len(found)
        time.sleep(0.02)


def _members(cookie: str, groups: set[int]) -> Iterator[tuple[int, int]]:
    """Live processes of the job as (pid, pidfd). The pidfd is opened first, so a reused pid is never hit."""
    mark = f"\0{COOKIE}={cookie}\0".encode()
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        pid = int(entry)
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            continue
        if _belongs(pid, mark, groups):
            yield pid, pidfd
        else:
            os.close(pidfd)


def _belongs(pid: int, mark: bytes, groups: set[int]) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, _, group, *_ = file.read().rpartition(b")")[2].split()
        if state in (b"Z", b"X"):
            return False
        if int(group) in groups:
            return True
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in b"\0" + file.read() + b"\0"
    except OSError:  # gone meanwhile, or another user's
        return False


def _send(pidfd: int, number: int) -> None:
    try:  # noqa: SIM105  contextlib would be one import more
        signal.pidfd_send_signal(pidfd, number)
    except OSError:  # it ended by itself
        pass


def _lines_from_launcher() -> Iterator[bytes]:
    """What it says, until it closes the pipe or dies. A process it forked may hold the pipe open for longer."""
    watched = [0]
    try:  # noqa: SIM105  as in _send
        watched.append(os.pidfd_open(os.getppid()))
    except OSError:
        pass
    rest = b""
    while True:
        ready = select.select(watched, [], [])[0]
        data = os.read(0, 65536) if 0 in ready else b""
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        yield from lines


def _main(cookie: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in _lines_from_launcher():
        word, _, group = line.partition(b" ")
        if word == b"watch":
            groups.add(int(group))
        elif word == b"forget":
            groups.discard(int(group))
    # Twice: a worker that was between fork and exec the first time did not carry the cookie yet.
    end_job(cookie, groups, grace_s=1.0)
    time.sleep(0.2)
    end_job(cookie, groups, grace_s=0.0)


if __name__ == "__main__":
    _main(sys.argv[1])
