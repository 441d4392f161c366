"""Tar shards in webdataset's form: files of one key follow each other, ``key.jpg`` and ``key.cls`` or ``key.json``.

The label is the number in ``key.cls``, or "label" in ``key.json``. Read by our own few lines, because Python's tarfile
is content with an archive that was cut off between two files; here every header and the archive's end are checked.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from hora.data.folder import EXTENSIONS
from hora.data.shards import ShardRecord, Shards
from hora.data.source import Sample
from hora.errors import BadData
from hora.files import replacing

__all__ = ["Member", "TarShards", "add_member", "members", "write_tar"]

_BLOCK = 512
_MAGICS = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"(\xb5": "zstd"}
_IMAGES = tuple(extension[1:] for extension in EXTENSIONS)


class TarShards(Shards):
    """The samples of tar shards; a Source.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     write_tar(Path(place) / "train-000000.tar", [Sample(b"one", 3), Sample(b"two", 0)])
    ...     TarShards([Path(place) / "train-000000.tar"]).read(0)
    2
    Sample(data=b'one', label=3)
    """

    kind = "tar"

    @staticmethod
    def takes(path: Path) -> bool:
        """Whether a file of this name is a tar shard."""
        return path.name.endswith((".tar", ".tar.gz", ".tgz"))  # the latter to be refused with the reason

    def read(self, index: int) -> Sample:
        return Sample(self.bytes_of(index), int(self.labels[index]))

    def scan(self, data: memoryview, path: Path) -> Iterator[ShardRecord]:
        sample: dict[str, Member] = {}
        key = None
        for member in members(data, path):
            folder, slash, name = member.name.rpartition("/")
            stem, _, extension = name.partition(".")
            if not stem:
                continue  # hidden, such as what macOS adds
            if folder + slash + stem != key and sample:
                yield _record(sample, data, f"{path}, sample {key!r}")
                sample = {}
            key = folder + slash + stem
            sample[extension.lower()] = member
        if sample:
            yield _record(sample, data, f"{path}, sample {key!r}")


class Member(NamedTuple):
    name: str
    offset: int
    nbytes: int


def _record(sample: dict[str, Member], data: memoryview, name: str) -> ShardRecord:
    image = next((sample[extension] for extension in _IMAGES if extension in sample), None)
    first = next(iter(sample.values())).offset
    if image is None:
        raise BadData(
            f"{name} at byte {first} has no image (.{', .'.join(_IMAGES)}), only .{', .'.join(sample)}. These may "
            "not be shards of images, or the files of a sample do not follow each other."
        )
    try:
        if label := sample.get("cls"):
            return ShardRecord(image.offset, image.nbytes, int(bytes(data[label.offset : label.offset + label.nbytes])))
        if label := sample.get("json"):
            content = json.loads(bytes(data[label.offset : label.offset + label.nbytes]))
            if isinstance(content, dict) and type(content.get("label")) is int:
                return ShardRecord(image.offset, image.nbytes, content["label"])
    except ValueError:
        assert label is not None
        begins = bytes(data[label.offset : label.offset + min(label.nbytes, 20)])
        raise BadData(f"{label.name} in {name} at byte {label.offset} is {begins!r}, not a label.") from None
    raise BadData(
        f'{name} at byte {first} has no label: neither a .cls nor a .json with a number "label", only '
        f".{', .'.join(sample)}. Make the shards with labels, or see that a sample's files follow each other."
    )


def members(data: memoryview, path: Path) -> Iterator[Member]:
    """The files in an archive: their names, and where they lie."""
    at, long_name = 0, ""
    while True:
        header = bytes(data[at : at + _BLOCK])
        if len(header) < _BLOCK:
            raise BadData(
                f"{path} ends at byte {len(data)} without the archive's end mark: it was cut off. Fetch or make it "
                "again."
            )
        if not any(header):
            return
        nbytes = _size(header, path, at)
        start, kind = at + _BLOCK, header[156:157]
        at = start + -(-nbytes // _BLOCK) * _BLOCK
        if at > len(data):
            raise BadData(
                f"{path} ends at byte {len(data)}, inside {long_name or _text(header[:100])!r}, which begins at byte "
                f"{start} and has {nbytes} bytes: it was cut off. Fetch or make it again."
            )
        match kind:
            case b"0" | b"\0" | b"7":
                prefix = _text(header[345:500]) if header[257:263] == b"ustar\0" else ""
                name = long_name or (f"{prefix}/" if prefix else "") + _text(header[:100])
                yield Member(name, start, nbytes)
                long_name = ""
            case b"L":  # GNU's long name of the file that follows
                long_name = _text(bytes(data[start : start + nbytes]))
            case b"x":
                long_name = _pax_name(bytes(data[start : start + nbytes])) or long_name
            case b"5" | b"g":  # a folder, or a remark
                long_name = ""
            case _:
                raise BadData(
                    f"{path} has {_text(header[:100])!r} of type {kind!r} at byte {start - _BLOCK}. Shards have plain "
                    "files only, no links: make it again, for instance with tar --dereference."
                )


def _size(header: bytes, path: Path, at: int) -> int:
    """How long a file is, by its header, whose checksum is checked."""
    # In numbers that are too large for octal digits, those of 8 GB and more, the highest bit is set.
    nbytes = int.from_bytes(header[125:136], "big") if header[124] & 0x80 else _octal(header[124:136])
    checksum = sum(header) - sum(header[148:156]) + 8 * ord(" ")
    if nbytes < 0 or checksum != _octal(header[148:156]):
        if at == 0 and (packed := _MAGICS.get(header[:2])):
            raise BadData(
                f"{path} is compressed with {packed}, which has no random access. Unpack it to a plain .tar: images "
                "are compressed already."
            )
        what = f"begins with {header[:8].hex(' ')}" if at == 0 else f"is damaged at byte {at}"
        raise BadData(f"{path} {what}: this is not the header of a file in a tar archive. Fetch or make it again.")
    return nbytes


def _octal(field: bytes) -> int:
    """The number in a field of octal digits, or -1."""
    try:
        return int(field.strip(b" \0"), 8)
    except ValueError:
        return -1


def _pax_name(records: bytes) -> str:
    """The path in a pax header, whose records are ``length key=value``."""
    while records:
        length, _, rest = records.partition(b" ")
        if not length.isdigit() or not int(length):
            break
        key, _, value = rest[: int(length) - len(length) - 2].partition(b"=")
        if key == b"path":
            return value.decode(errors="replace")
        records = records[int(length) :]
    return ""


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode(errors="replace")


def write_tar(path: Path, samples: Iterable[Sample], *, first: int = 0, extension: str = "jpg") -> int:
    """Write one shard, completely or not at all; returns how many samples. ``first`` is the number of its first key."""
    count = 0
    with replacing(path) as file, tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for count, sample in enumerate(samples, 1):
            key = f"{first + count - 1:09d}"
            for name, data in ((f"{key}.{extension}", sample.data), (f"{key}.cls", str(sample.label).encode())):
                add_member(archive, name, data)
    return count


def add_member(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    """Append a file to an archive that is written; of these bytes alone, so that it is the same each time."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))
