"""Shards: large files of many samples, and an index of where in them each sample lies.

The index is made by one scan of headers and kept beside the shards (``.hora-index``) if they can be written to, else in
memory. It holds for a shard as long as that one's size and time of change do. Workers that scan at once each write it
whole. With it, any sample is one ``pread``, which has no position that processes could share.
"""

from __future__ import annotations

import contextlib
import glob
import logging
import mmap
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from hora.errors import BadData
from hora.files import replacing

__all__ = ["CLASSES_FILE", "INDEX_FILE", "ShardRecord", "Shards", "expand", "has_pattern", "one_folder", "shares",
           "write_classes"]  # fmt: skip

_log = logging.getLogger("hora")

INDEX_FILE, CLASSES_FILE = ".hora-index", "classes.txt"
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_MOST_CLASSES = 1_000_000
_MOST_OPEN = 128  # shards kept open in a process


class ShardRecord(NamedTuple):
    """Where a sample's bytes lie in a shard, and its label as the shard has it."""

    offset: int
    nbytes: int
    label: int


class _Entry(msgspec.Struct, frozen=True):
    """What the index knows of one shard."""

    kind: str
    nbytes: int
    changed_ns: int
    records: bytes  # int64, three a record


class _Index(msgspec.Struct, frozen=True):
    version: int
    shards: dict[str, _Entry]


_VERSION = 1


class Shards(ABC):
    """The samples of several shards, numbered through in their order. A format says how to scan one."""

    kind: str  # of shard; part of the index

    def __init__(self, files: Sequence[Path], *, first_label: int = 0) -> None:
        if not files:
            raise BadData(f"there are no {self.kind} shards. Check --data.")
        self.files = list(files)
        self._open: dict[int, int] = {}
        tables = _load(self)
        self._starts = np.cumsum([0, *map(len, tables)])
        self._records = np.concatenate(tables)
        self.labels = self._records[:, 2] - first_label
        if not len(self):
            raise BadData(
                f"{_several(self.files)} of kind {self.kind} hold no sample at all. Make or fetch them again."
            )
        self.classes = _classes(self.files[0].parent, int(self.labels.max()) + 1)
        wrong = np.flatnonzero((self.labels < 0) | (self.labels >= len(self.classes)))
        if len(wrong):
            last = first_label + len(self.classes) - 1
            raise BadData(
                f"{self.name(wrong[0])} has label {self._records[wrong[0], 2]}, but labels are {first_label} to {last} "
                f"here: there are {len(self.classes)} classes, and first_label is {first_label}. Give first_label as "
                f"these shards have it, or see that {CLASSES_FILE} beside them or above names all classes."
            )

    def __len__(self) -> int:
        return len(self._records)

    @abstractmethod
    def scan(self, data: memoryview, path: Path) -> Iterator[ShardRecord]:
        """Every sample of a shard, from its headers alone. Raises BadData where the shard is not what it should be."""

    def place(self, index: int) -> tuple[int, int, ShardRecord]:
        """The number of a sample's shard, the sample's number in that, and where it lies."""
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        shard = int(np.searchsorted(self._starts, index, side="right")) - 1
        return shard, index - int(self._starts[shard]), ShardRecord(*self._records[index].tolist())

    def name(self, index: int) -> str:
        shard, number, record = self.place(index)
        return f"{self.files[shard]}, record {number} at byte {record.offset}"

    def bytes_of(self, index: int) -> bytes:
        """What lies where the index says."""
        shard, _, record = self.place(index)
        try:
            data = os.pread(self._descriptor(shard), record.nbytes, record.offset)
        except OSError as error:
            raise BadData(f"{self.name(index)} cannot be read: {error.strerror}.") from None
        if len(data) != record.nbytes:
            raise BadData(
                f"{self.name(index)} should have {record.nbytes:,} bytes, but the file ends after {len(data):,} of "
                "them. It has changed since it was opened; start again."
            )
        return data

    def _descriptor(self, shard: int) -> int:
        if shard not in self._open:
            if len(self._open) >= _MOST_OPEN:
                os.close(self._open.pop(next(iter(self._open))))
            self._open[shard] = os.open(self.files[shard], os.O_RDONLY | os.O_CLOEXEC)
        return self._open[shard]

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_open": {}}  # descriptors mean nothing in a spawned process

    def __del__(self) -> None:
        for descriptor in self.__dict__.get("_open", {}).values():
            with contextlib.suppress(OSError):
                os.close(descriptor)


def expand(pattern: Path) -> list[Path]:
    """The files that a pattern means, in order: numbers in braces, as webdataset has them, or the shell's wildcards.

    >>> [str(path) for path in expand(Path("shard-{008..010}.tar"))]
    ['shard-008.tar', 'shard-009.tar', 'shard-010.tar']
    """
    if match := _RANGE.search(str(pattern)):
        first, last = match.groups()
        numbers = (f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1))
        return [path for n in numbers for path in expand(Path(_RANGE.sub(n, str(pattern), count=1)))]
    if any(mark in str(pattern) for mark in "*?["):
        return sorted(map(Path, glob.glob(str(pattern))))
    return [pattern]


def has_pattern(path: Path) -> bool:
    """Whether a path stands for several.

    >>> has_pattern(Path("shard-{000..009}.tar")), has_pattern(Path("shard-000.tar"))
    (True, False)
    """
    return bool(_RANGE.search(str(path))) or any(mark in str(path) for mark in "*?[")


def one_folder(path: Path) -> Path:
    """The folder that a pattern matches, if it matches that and nothing else; any other path as it is.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     (Path(place) / "imagenet").mkdir()
    ...     one_folder(Path(place) / "image*").name, one_folder(Path(place) / "train-*").name
    ('imagenet', 'train-*')
    """
    if has_pattern(path) and not path.exists():
        found = expand(path)
        if len(found) == 1 and found[0].is_dir():
            return found[0]
    return path


def shares(samples: int, shards: int) -> list[range]:
    """Samples divided over shards as evenly as can be, in order, for whoever writes them.

    >>> shares(10, 3)
    [range(0, 3), range(3, 6), range(6, 10)]
    """
    return [range(samples * shard // shards, samples * (shard + 1) // shards) for shard in range(shards)]


def write_classes(folder: Path, classes: Sequence[str]) -> None:
    """Name the classes of the shards in a folder, one a line in the order of their labels.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     write_classes(Path(place), ["cat", "dog"])
    ...     (Path(place) / "classes.txt").read_text()
    'cat\\ndog\\n'
    """
    with replacing(folder / CLASSES_FILE) as file:
        file.write("".join(f"{name}\n" for name in classes).encode())


def _classes(folder: Path, at_least: int) -> tuple[str, ...]:
    """Class names from the file beside the shards or in the folder above; without one, numbers."""
    for place in (folder, folder.parent):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if names := (place / CLASSES_FILE).read_text("utf-8").split("\n"):
                return tuple(name.strip() for name in names if name.strip())
    return tuple(map(str, range(at_least)))


def _load(shards: Shards) -> list[npt.NDArray[np.int64]]:
    """The records of each shard, from the index as far as it holds, else by a scan."""
    tables: dict[Path, npt.NDArray[np.int64]] = {}
    for folder in dict.fromkeys(path.parent for path in shards.files):
        known = _read_index(folder)
        fresh = dict(known)
        for path in (path for path in shards.files if path.parent == folder):
            try:
                state = path.stat()
            except OSError as error:
                raise BadData(f"{path} cannot be read: {error.strerror}. Check --data and the pattern.") from None
            entry = known.get(path.name)
            if entry is None or (entry.kind, entry.nbytes, entry.changed_ns) != (
                shards.kind,
                state.st_size,
                state.st_mtime_ns,
            ):
                entry = _Entry(shards.kind, state.st_size, state.st_mtime_ns, _scan(shards, path).tobytes())
                fresh[path.name] = entry
            tables[path] = np.frombuffer(entry.records, np.int64).reshape(-1, 3)
        if fresh != known:
            _write_index(folder, fresh)
    return [tables[path] for path in shards.files]


def _scan(shards: Shards, path: Path) -> npt.NDArray[np.int64]:
    try:
        with open(path, "rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return _table(shards.scan(memoryview(b""), path), path)  # which cannot be mapped
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)  # goes when nothing refers to it any more
            mapped.madvise(mmap.MADV_RANDOM)  # only headers are looked at: what lies between is not worth reading
            return _table(shards.scan(memoryview(mapped), path), path)
    except OSError as error:
        raise BadData(f"{path} cannot be read: {error.strerror}.") from None


def _table(records: Iterator[ShardRecord], path: Path) -> npt.NDArray[np.int64]:
    found = list(records)
    for number, record in enumerate(found):
        if not 0 <= record.label < _MOST_CLASSES:
            raise BadData(
                f"{path}, record {number} at byte {record.offset} has label {record.label}, which is not the number of "
                "a class. Make the shard again."
            )
    return np.array(found, np.int64).reshape(-1, 3)


def _read_index(folder: Path) -> dict[str, _Entry]:
    """What the index beside the shards says; nothing, if there is none that can be read."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        index = msgspec.msgpack.decode((folder / INDEX_FILE).read_bytes(), type=_Index)
        if index.version == _VERSION and all(len(entry.records) % 24 == 0 for entry in index.shards.values()):
            return index.shards
    return {}


def _write_index(folder: Path, entries: dict[str, _Entry]) -> None:
    """A courtesy to the next run: data sets are often read-only, and then every run scans."""
    there = {name: entry for name, entry in entries.items() if (folder / name).exists()}
    try:
        with replacing(folder / INDEX_FILE) as file:
            file.write(msgspec.msgpack.encode(_Index(_VERSION, there)))
    except OSError as error:
        _log.info("the index of %s is kept in memory: %s", folder, error.strerror)


def _several(files: Sequence[Path]) -> str:
    return str(files[0]) if len(files) == 1 else f"{len(files)} files from {files[0]} to {files[-1].name}"
