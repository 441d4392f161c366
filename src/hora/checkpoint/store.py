"""A folder of checkpoints: written completely or not at all, checked when read, thinned out to the last and the best.

A checkpoint is one file, in whatever format its writer chose, so that it loads without Hora, beside a small note
(``name.json``) with its size, its checksum and what was known when it was written. The file is written under another
name and made durable; then comes the note, which also describes the file of this name that was there before; then the
file takes its name, and the note forgets the one before. A checkpoint is valid if its note describes it. So whatever is
killed, whenever, what was valid before still is, even under the same name, and the newest valid one is complete.

One process writes (rank 0); any may read.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from hora.errors import DamagedCheckpoint, UsageError
from hora.files import json_text

__all__ = ["Checkpoint", "CheckpointStore"]

_log = logging.getLogger("hora")

_NOTE, _PART = ".json", ".part"
_BLOCK_BYTES = 4 << 20


class _Note(msgspec.Struct, frozen=True, kw_only=True):
    """What is written beside a checkpoint."""

    position: float
    nbytes: int
    checksum: str
    written: float  # seconds since 1970
    facts: dict[str, Any] = {}
    before: _Note | None = None  # the file that this one takes the place of


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One that counts. ``position`` orders them (an epoch, a step, samples seen); ``facts`` are the writer's."""

    path: Path
    position: float
    nbytes: int
    checksum: str
    written: float
    facts: dict[str, Any] = {}

    def verify(self) -> None:
        """Read the whole file; raises DamagedCheckpoint if it is not the one that was written."""
        found = _checksum(self.path)
        if found != self.checksum:
            raise DamagedCheckpoint(
                f"{self.path} is damaged: its checksum is {found[:12]}…, it was written with {self.checksum[:12]}…. "
                "Delete it to continue from the one before it."
            )


class CheckpointStore:
    """The checkpoints of one run.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> store = CheckpointStore(folder.name, keep=2)
    >>> for epoch in (1, 2, 3):
    ...     saved = store.save(f"epoch-{epoch}.bin", lambda file: file.write(b"weights"), position=epoch,
    ...                        facts={"val_accuracy": 1 / epoch})
    >>> [checkpoint.path.name for checkpoint in store.all()], store.latest().position
    (['epoch-2.bin', 'epoch-3.bin'], 3.0)
    >>> folder.cleanup()
    """

    def __init__(self, folder: str | os.PathLike[str], *, keep: int = 3, best: str = "", highest: bool = True) -> None:
        """``keep`` is how many of the last stay (0: all). ``best`` names a fact: the one with its best value stays too,
        the ``highest`` or the lowest."""
        if keep < 0:
            raise UsageError(f"keep={keep} checkpoints is not possible. Give 1 or more, or 0 to keep all.")
        self.folder, self._keep = Path(folder), keep
        self._best, self._highest = best, highest

    def save(
        self,
        name: str,
        write: Callable[[BinaryIO], object],
        *,
        position: float,
        facts: Mapping[str, Any] | None = None,
    ) -> Checkpoint:
        """Write a checkpoint; it counts once this returns, and not before. One of the same name is replaced.

        Raises OSError if the disk is full or the folder cannot be written; the previous version is then unchanged.
        """
        if not name or Path(name).name != name or name.endswith((_NOTE, _PART)):
            raise UsageError(f"{name!r} is not a name for a checkpoint. Give a file name, without {_NOTE} or {_PART}.")
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / name
        old = _read(path)
        with _durable(path) as (file, part):
            write(file)
            file.flush()
            os.fsync(file.fileno())
            note = _Note(
                position=float(position),
                nbytes=part.stat().st_size,
                checksum=_checksum(part),  # read back: a writer may seek
                written=time.time(),
                facts=dict(facts or {}),
                before=old and msgspec.structs.replace(old, before=None),
            )
            _put(note, path)
        if old is not None:
            note = msgspec.structs.replace(note, before=None)
            _put(note, path)  # or every reader would have to find out by the checksum which of the two is there
        self._thin_out()
        return _of(path, note)

    def all(self) -> list[Checkpoint]:
        """Those that count, the oldest first. What a killed writer left does not count."""
        found = []
        for note_path in self.folder.glob("*" + _NOTE) if self.folder.is_dir() else ():
            path = note_path.with_name(note_path.name.removesuffix(_NOTE))
            if (note := _read(path)) is not None:
                found.append(_of(path, note))
        return sorted(found, key=lambda checkpoint: (checkpoint.position, checkpoint.written))

    def latest(self) -> Checkpoint | None:
        """The newest that is complete, or None. One that is damaged is passed over, with a warning."""
        for checkpoint in reversed(self.all()):
            try:
                checkpoint.verify()
            except (DamagedCheckpoint, OSError) as error:
                _log.warning("%s", error)
            else:
                return checkpoint
        return None

    def best(self) -> Checkpoint | None:
        """The one with the best value of the fact that this store watches; of equals the newest."""
        return self._best_of(self.all())

    def _best_of(self, checkpoints: list[Checkpoint]) -> Checkpoint | None:
        sign = 1.0 if self._highest else -1.0
        rated = [c for c in checkpoints if isinstance(c.facts.get(self._best), int | float)]
        return max(rated, key=lambda c: (sign * c.facts[self._best], c.position), default=None)

    def _thin_out(self) -> None:
        """Delete what need not stay, the note first: a checkpoint without one does not count."""
        if not self._keep:
            return
        found = self.all()
        best = self._best_of(found)
        for checkpoint in found[: -self._keep]:
            if best is None or checkpoint.path != best.path:
                checkpoint.path.with_name(checkpoint.path.name + _NOTE).unlink(missing_ok=True)
                checkpoint.path.unlink(missing_ok=True)
        for left in self.folder.glob("*" + _PART):  # of a writer that was killed: this process is the only one
            left.unlink(missing_ok=True)


def _of(path: Path, note: _Note) -> Checkpoint:
    return Checkpoint(path=path, **{field: getattr(note, field) for field in Checkpoint.__struct_fields__[1:]})


def _put(note: _Note, path: Path) -> None:
    """Write the note beside this file."""
    with _durable(path.with_name(path.name + _NOTE)) as (file, _):
        file.write(json_text(note))


def _read(path: Path) -> _Note | None:
    """What the note beside this file says of it; None if there is none, or it is of another file."""
    try:
        note = msgspec.json.decode(path.with_name(path.name + _NOTE).read_bytes(), type=_Note)
        nbytes = path.stat().st_size
        if note.before is not None and note.before.nbytes == nbytes and _checksum(path) == note.before.checksum:
            return note.before  # its writer was killed before the new file took its place
    except (OSError, msgspec.DecodeError):
        return None
    return note if note.nbytes == nbytes else None


@contextlib.contextmanager
def _durable(path: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """A file to write, and where it is meanwhile. When the block ends well it takes its name, whole, for good."""
    part = path.with_name(path.name + _PART)
    try:
        with open(part, "wb") as file:
            yield file, part
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # some network file systems cannot
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _checksum(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=32)
    with open(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
