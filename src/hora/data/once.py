"""A folder that one process makes while others wait for it, and that is complete or absent.

Several processes of a host may want the same folder at the same moment. ``turn`` lets one of them in at a time, by a
lock that the kernel releases if its holder dies. ``whole`` gives a folder beside the one that is wanted, which takes
its name when everything is in it. What an interrupted process left behind is hidden, and is removed by the next.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from hora.errors import EnvironmentUnfit
from hora.text import size_text

__all__ = ["FolderLock", "NoStatus", "StatusReporter", "folder_lock", "part_of", "whole"]

_POLL_S, _SAY_EVERY_S = 0.05, 0.5
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class StatusReporter(Protocol):
    """What the progress of long work is reported to."""

    def note(self, text: str) -> None:
        """A line that is worth keeping."""
        ...

    def progress(self, what: str, done: int, total: int, unit: str = "B") -> None:
        """Report how much of ``total`` (0: not known) is done, in bytes or ``unit``."""
        ...


class NoStatus:
    """Reports nothing.

    >>> NoStatus().progress("copying", 1, 2)
    """

    def note(self, text: str) -> None:
        pass

    def progress(self, what: str, done: int, total: int, unit: str = "B") -> None:
        pass


class FolderLock:
    """The right to make a folder. Its messages are shown to the processes that wait for it."""

    def __init__(self, lock: int, reporter: StatusReporter) -> None:
        self._lock, self._reporter, self._said = lock, reporter, 0.0
        self.waited = False

    def note(self, text: str) -> None:
        self._reporter.note(text)

    def progress(self, what: str, done: int, total: int, unit: str = "B") -> None:
        self._reporter.progress(what, done, total, unit)
        if (now := time.monotonic()) - self._said >= _SAY_EVERY_S:
            self._said = now
            said = f"{what}, {_amount(done, unit)}" + (f" of {_amount(total, unit)}" if total else "")
            self._write(f"process {os.getpid()}: {said}")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a courtesy to those who wait; a full disk is found by the work itself
            os.pwrite(self._lock, text.encode()[:200].ljust(200), 0)


@contextlib.contextmanager
def folder_lock(
    target: Path, *, wait_s: float = 3600.0, reporter: StatusReporter | None = None
) -> Iterator[FolderLock]:
    """Be the only process of this host that makes ``target``; waits for the one that does, up to ``wait_s``.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place, folder_lock(Path(place) / "mnist") as mine:
    ...     mine.waited
    False
    """
    reporter = reporter or NoStatus()
    path = target.with_name(f".{target.name}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    end, waited, last = time.monotonic() + wait_s, False, ""
    while isinstance(lock := _try(path, reporter), str):
        doing = lock
        if not waited:
            reporter.note(f"{target} is being made by another process; waiting for it.")
        waited = True
        if doing and doing != last:
            last = doing
            reporter.progress(f"waiting for {doing}", 0, 0)
        if time.monotonic() > end:
            raise EnvironmentUnfit(
                f"{target} was not ready after {wait_s:g} s: another process makes it ({doing or 'silent'}). "
                "Check whether it still makes progress, or wait longer with --wait."
            )
        time.sleep(_POLL_S)
    mine = FolderLock(lock, reporter)
    mine.waited = waited
    try:
        mine._write(f"process {os.getpid()}")
        yield mine
    finally:
        path.unlink(missing_ok=True)  # before the lock is let go, so that nobody locks a file that has no name
        os.close(lock)


@contextlib.contextmanager
def whole(target: Path) -> Iterator[Path]:
    """A folder to fill, which becomes ``target``, in place of an older one, unless something is raised.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     with whole(Path(place) / "set") as folder:
    ...         _ = (folder / "a.bin").write_bytes(b"1")
    ...     sorted(str(path.relative_to(place)) for path in Path(place).rglob("*"))
    ['set', 'set/a.bin']
    """
    part, old = part_of(target), target.with_name(f".{target.name}.old")
    shutil.rmtree(part, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        yield part
        if target.exists():
            target.rename(old)
        part.rename(target)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    shutil.rmtree(old, ignore_errors=True)


def part_of(target: Path) -> Path:
    """Where ``target`` is while it is incomplete."""
    return target.with_name(f".{target.name}.part")


def _amount(number: int, unit: str) -> str:
    return size_text(number) if unit == "B" else f"{number:,} {unit}"


def _try(path: Path, reporter: StatusReporter) -> int | str:
    """The lock's descriptor, or what the process that has it says it does."""
    while True:
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise EnvironmentUnfit(
                    f"{path} is a link, which somebody else may have put there. Remove it."
                ) from None
            raise EnvironmentUnfit(
                f"{path.parent} cannot be written to: {error.strerror}. Choose another folder with --to."
            ) from None
        about = os.fstat(lock)
        # A name that others can guess: it must be nothing of theirs, or what is written into it would change that.
        if not stat.S_ISREG(about.st_mode) or about.st_uid not in (os.geteuid(), path.parent.stat().st_uid):
            os.close(lock)
            raise EnvironmentUnfit(f"{path} is not a file of yours, but of user {about.st_uid}. Remove it.")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            said = os.pread(lock, 200, 0).decode(errors="replace").strip("\0 \n")
            os.close(lock)
            return said
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                os.close(lock)
                raise
            reporter.note(
                f"{path.parent} is on a file system without locks: take care that one process at a time does this."
            )
            return lock
        with contextlib.suppress(FileNotFoundError):
            if os.stat(path).st_ino == os.fstat(lock).st_ino:
                return lock
        os.close(lock)  # it was let go, and removed, between our opening and our locking it
