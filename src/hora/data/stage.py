"""Brings a data set to a node's own disk, once a node: a folder is copied, a tar file is unpacked.

Every process of a node may ask for it at the same moment; one does it and the others wait. The result is in its place
when it is complete, with a note inside that says what it was made from and what it holds, so that the next call finds
it in place, copies a source again that has changed, and restores files that a cleaner of temporary files has removed.
"""

from __future__ import annotations

import concurrent.futures
import errno
import hashlib
import lzma
import os
import shutil
import socket
import tarfile
import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from hora.data.once import FolderLock, NoStatus, StatusReporter, folder_lock, whole
from hora.data.private import check_mine, check_place
from hora.errors import BadData, EnvironmentUnfit, UsageError
from hora.files import json_text
from hora.text import size_text

__all__ = ["NOTE", "Staged", "stage", "staged_name"]

NOTE = ".staged-by-hora.json"
_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
_COPIERS = 8  # files in flight: a shared file system answers slowly, but many at once
_AT_ONCE = 4096  # of a million files, not all wait in memory
_PARTS = {"train", "val", "test"}  # folders that keep their name, though they be all that a tar file has
_RESERVE = 1.02  # of the size; a file takes whole blocks


class Staged(NamedTuple):
    """``how`` is "copied", "unpacked" or "there" already; ``by_other`` if another process did it meanwhile."""

    folder: Path
    how: str
    by_other: bool
    files: int
    nbytes: int
    seconds: float


class _Note(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    fingerprint: str  # of the source, when it was brought
    files: int
    nbytes: int
    holds: str  # names, sizes and times of what is here
    completed: float


class _File(NamedTuple):
    name: str
    nbytes: int
    mtime_ns: int
    ctime_ns: int  # of the last change of any kind, which nobody can set
    uid: int


def stage(source: Path, to: Path, *, reporter: StatusReporter | None = None, wait_s: float = 3600.0) -> Staged:
    """Bring ``source`` into a folder of its name in ``to``, unless it is there.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as shared, tempfile.TemporaryDirectory() as local:
    ...     _ = (Path(shared) / "a.bin").write_bytes(b"12345")
    ...     first, again = (stage(Path(shared), Path(local)) for _ in range(2))
    ...     first.how, again.how, again.nbytes, (again.folder / "a.bin").read_bytes()
    ('copied', 'there', 5, b'12345')
    """
    started, called = time.monotonic(), time.time()
    source, target = source.absolute(), to.absolute() / staged_name(source)
    _check(source, target)
    check_place(target.parent)
    with folder_lock(target, wait_s=wait_s, reporter=reporter or NoStatus()) as mine:
        check_mine(target)
        note = _read_note(target)
        if note is None and target.exists():
            raise UsageError(
                f"{target} exists and was not staged by Hora, so it is left alone. Give another folder with --to, or "
                "remove it."
            )
        # Whoever waited need not look at the source again: it was brought during this very call.
        fresh = note is not None and mine.waited and note.source == str(source) and note.completed >= called
        if note is None or not fresh:
            files = _source_files(source)
            fingerprint = _fingerprint(files)
            if (
                note is None
                or (note.source, note.fingerprint) != (str(source), fingerprint)
                or not _intact(target, note)
            ):
                how = "copied" if source.is_dir() else "unpacked"
                note = _bring(source, target, files, fingerprint, mine)
                return Staged(target, how, False, note.files, note.nbytes, time.monotonic() - started)
        return Staged(target, "there", mine.waited, note.files, note.nbytes, time.monotonic() - started)


def staged_name(source: Path) -> str:
    """The folder that a source is brought into.

    >>> staged_name(Path("/shared/imagenet.tar.gz")), staged_name(Path("/shared/cifar10"))
    ('imagenet', 'cifar10')
    """
    for ending in sorted(_ARCHIVES, key=len, reverse=True):
        if source.name.endswith(ending):
            return source.name.removesuffix(ending)
    return source.resolve().name if source.name in ("", ".", "..") else source.name


def _check(source: Path, target: Path) -> None:
    if not source.exists():
        raise UsageError(
            f"{source} does not exist on {socket.gethostname()}. Check the path; is its file system mounted there?"
        )
    if not source.is_dir() and not source.name.endswith(_ARCHIVES):
        raise UsageError(f"{source} is neither a folder nor a tar file ({', '.join(_ARCHIVES)}). Give one of these.")
    if not staged_name(source):
        raise UsageError(f"{source} has no name to be staged under. Give a folder below it.")
    here, there = target.resolve(), source.resolve()
    if source.is_dir() and (here == there or there in here.parents or here in there.parents):
        raise UsageError(f"{target} would lie inside {source}, or around it. Give a folder elsewhere with --to.")


def _bring(source: Path, target: Path, files: list[_File], fingerprint: str, mine: FolderLock) -> _Note:
    needed = sum(file.nbytes for file in files)
    free = shutil.disk_usage(target.parent).free
    if needed * _RESERVE > free:  # a packed tar takes more yet; the least is known
        raise _no_room(source, target, needed, free)
    try:
        with whole(target) as part:
            part.chmod(0o700)
            if source.is_dir():
                _copy(source, part, files, mine)
            else:
                _unpack(source, part, mine)
            held = list(_walk(part))
            note = _Note(
                source=str(source), fingerprint=fingerprint, files=len(held), nbytes=sum(file.nbytes for file in held),
                holds=_holds(held), completed=time.time(),
            )  # fmt: skip
            (part / NOTE).write_bytes(json_text(note))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _no_room(source, target, needed, shutil.disk_usage(target.parent).free) from None
        raise EnvironmentUnfit(
            f"{source} could not be copied to {target}: {error.filename or ''} {error.strerror or error}. "
            "Nothing is left of it there."
        ) from None
    return note


def _copy(source: Path, part: Path, files: list[_File], mine: FolderLock) -> None:
    for folder in {str(Path(file.name).parent) for file in files}:
        (part / folder).mkdir(parents=True, exist_ok=True)
    total, done, lock = sum(file.nbytes for file in files), 0, threading.Lock()
    stop = threading.Event()

    def one(file: _File) -> None:
        nonlocal done
        if stop.is_set():
            return
        copy = part / file.name
        shutil.copyfile(source / file.name, copy)
        os.utime(copy, ns=(file.mtime_ns, file.mtime_ns))
        if (nbytes := copy.stat().st_size) != file.nbytes:
            raise BadData(
                f"{source / file.name} had {file.nbytes} bytes, and {nbytes} when it was copied: somebody is writing "
                "it. Stage it when it is finished."
            )
        with lock:
            done += nbytes
            mine.progress(f"copying {source}", done, total)

    with concurrent.futures.ThreadPoolExecutor(_COPIERS) as pool:
        try:
            for first in range(0, len(files), _AT_ONCE):
                for _ in pool.map(one, files[first : first + _AT_ONCE]):
                    pass
        except BaseException:
            stop.set()
            raise


def _unpack(source: Path, part: Path, mine: FolderLock) -> None:
    if not hasattr(tarfile, "data_filter"):
        raise EnvironmentUnfit(
            "This Python cannot unpack a tar file safely. Use 3.11.4 or newer, or unpack it yourself."
        )
    total = source.stat().st_size
    try:
        with source.open("rb") as packed, tarfile.open(fileobj=packed, mode="r|*") as archive:
            for member in archive:
                archive.extract(member, part, filter="data")
                mine.progress(f"unpacking {source}", packed.tell(), total)
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise BadData(f"{source} cannot be unpacked: {error}. It was cut off, altered, or is not a tar file.") from None
    _without_top(part)


def _without_top(part: Path) -> None:
    """What ``tar -cf set.tar set/`` packed is the data itself, not a folder with a folder of it."""
    inside = list(part.iterdir())
    if len(inside) != 1 or inside[0].is_symlink() or not inside[0].is_dir() or inside[0].name in _PARTS:
        return
    top = inside[0].rename(part / f".top-{os.getpid()}")  # it may hold one of its own name
    top.chmod(0o700)
    for each in list(top.iterdir()):
        each.rename(part / each.name)
    top.rmdir()


def _source_files(source: Path) -> list[_File]:
    """The files of the source in the order of their names; of a tar file, that file."""
    if source.is_dir():
        files = sorted(_walk(source))
        if not files:
            raise UsageError(f"{source} has no files to stage. Check the path.")
        return files
    state = source.stat()
    return [_file(source.name, state)]


def _walk(folder: Path, below: str = "", seen: frozenset[tuple[int, int]] = frozenset()) -> Iterator[_File]:
    """Every file in a folder, links followed as ``cp -L`` does; without our note."""
    state = os.stat(folder / below)
    if (me := (state.st_dev, state.st_ino)) in seen:
        raise UsageError(f"{folder / below} is a link to a folder that it lies in, so it has no end. Remove the link.")
    with os.scandir(folder / below) as entries:
        for entry in entries:
            name = f"{below}/{entry.name}" if below else entry.name
            try:
                if entry.is_dir():
                    yield from _walk(folder, name, seen | {me})
                elif name != NOTE:
                    state = entry.stat()
                    yield _file(name, state)
            except FileNotFoundError:
                raise UsageError(f"{folder / name} is a broken link. Remove or repair it.") from None


def _file(name: str, state: os.stat_result) -> _File:
    return _File(name, state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_uid)


def _fingerprint(files: list[_File]) -> str:
    return _digest(f"{file.mtime_ns} {file.nbytes} {file.name}" for file in files)


def _holds(files: list[_File]) -> str:
    return _digest(sorted(f"{file.ctime_ns} {file.nbytes} {file.name}" for file in files))


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256(os.fsencode("\n".join(lines))).hexdigest()


def _intact(target: Path, note: _Note) -> bool:
    """Whether every file is as it was brought: this user's, and not changed since."""
    try:
        held = list(_walk(target))
    except UsageError:  # a link that leads nowhere, or round: not what was brought
        return False
    return _holds(held) == note.holds and all(file.uid == os.geteuid() for file in held)


def _read_note(target: Path) -> _Note | None:
    try:
        return msgspec.json.decode((target / NOTE).read_bytes(), type=_Note)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError):
        return None


def _no_room(source: Path, target: Path, needed: int, free: int) -> EnvironmentUnfit:
    return EnvironmentUnfit(
        f"{source} takes at least {size_text(needed)}, and {target.parent} on {socket.gethostname()} has "
        f"{size_text(free)} free. Nothing was left there. Free some space, or give a folder on another disk with --to."
    )
