"""TFRecord shards of images, as the ImageNet builders of TensorFlow write them; read and written without it.

A record is its length (8 bytes), the length's masked CRC-32C (4), the data, and the data's (4). The data is a
``tf.train.Example`` with at least ``image/encoded`` and ``image/class/label``, which by convention counts from 1.

The scan checks every length; reading a sample checks its data, at a tenth to a fifth of what decoding it costs.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from hora.data import jpeg
from hora.data.crc32c import masked
from hora.data.example import parse_example, write_example
from hora.data.shards import ShardRecord, Shards
from hora.data.source import Sample
from hora.errors import BadData
from hora.files import replacing

__all__ = ["TFRecordShards", "read_records", "shard_name", "write_records", "write_tfrecord"]

IMAGE, LABEL = "image/encoded", "image/class/label"
_HEAD, _FOOT = struct.Struct("<QI"), struct.Struct("<I")
_SHARD = re.compile(r".+-\d+-of-\d+(\..*)?$|.+\.tfrecords?$")


class TFRecordShards(Shards):
    """The samples of TFRecord shards; a Source.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     path = Path(place) / shard_name("train", 0, 1)
    ...     write_tfrecord(path, [Sample(jpeg.encode(jpeg.np.zeros((8, 8, 3), "uint8")), 4)], classes="abcde")
    ...     TFRecordShards([path]).labels
    1
    array([4])
    """

    kind = "TFRecord"

    def __init__(self, files: Sequence[Path], *, first_label: int = 1, check: bool = True) -> None:
        """``check`` can be turned off where a disk is trusted and every bit of speed counts."""
        self._check = check
        super().__init__(files, first_label=first_label)

    @staticmethod
    def takes(path: Path) -> bool:
        """Whether a file of this name is a TFRecord shard."""
        return bool(_SHARD.match(path.name))

    def read(self, index: int) -> Sample:
        record = memoryview(self.bytes_of(index))
        data, foot = record[: -_FOOT.size], record[-_FOOT.size :]
        if self._check and masked(data) != _FOOT.unpack(foot)[0]:
            raise BadData(f"{self.name(index)} is damaged: its data has another checksum. Fetch or make it again.")
        try:
            image = parse_example(data, only=(IMAGE,)).get(IMAGE)
        except BadData as error:
            raise BadData(f"{self.name(index)}: {error}") from None
        if not image or not isinstance(image[0], bytes):
            raise BadData(f"{self.name(index)} has no bytes {IMAGE!r}. These may not be records of images.")
        return Sample(image[0], int(self.labels[index]))

    def scan(self, data: memoryview, path: Path) -> Iterator[ShardRecord]:
        for number, (start, end) in enumerate(_records(data, path)):
            name = f"{path}, record {number} at byte {start}"
            try:
                label = parse_example(data[start:end], only=(LABEL,)).get(LABEL)
            except BadData as error:
                raise BadData(f"{name}: {error}") from None
            if not label or not isinstance(label[0], int):
                raise BadData(f"{name} has no integer {LABEL!r}. These may not be records of labelled images.")
            yield ShardRecord(start, end - start + _FOOT.size, label[0])  # with the checksum, to be read at once


def read_records(path: Path) -> Iterator[bytes]:
    """The records of any TFRecord file, whatever is in them, checked; one after the other.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     write_records(Path(place) / "any", [b"one", b"", b"three"])
    ...     list(read_records(Path(place) / "any"))
    3
    [b'one', b'', b'three']
    """
    try:
        data = memoryview(path.read_bytes())
    except OSError as error:
        raise BadData(f"{path} cannot be read: {error.strerror}.") from None
    for number, (start, end) in enumerate(_records(data, path)):
        if masked(data[start:end]) != _FOOT.unpack_from(data, end)[0]:
            raise BadData(f"{path}, record {number} at byte {start} is damaged: its data has another checksum.")
        yield bytes(data[start:end])


def write_records(path: Path, records: Iterable[bytes]) -> int:
    """Write a TFRecord file, completely or not at all; returns how many records."""
    count = 0
    with replacing(path) as file:
        for record in records:
            count += 1
            length = struct.pack("<Q", len(record))
            file.write(length + _FOOT.pack(masked(length)) + record + _FOOT.pack(masked(record)))
    return count


def write_tfrecord(
    path: Path, samples: Iterable[Sample], classes: Sequence[str], *, first_label: int = 1, first: int = 0
) -> int:
    """Write one shard of images with the fields that TensorFlow's ImageNet builder writes, but for bounding boxes.

    ``first`` is the number of its first sample, which its file name is made of.
    """

    def examples() -> Iterator[bytes]:
        for number, sample in enumerate(samples, first):
            height, width = jpeg.size(sample.data)
            png = sample.data.startswith(jpeg.PNG)
            name, extension = classes[sample.label], "png" if png else "JPEG"
            yield write_example(
                {
                    "image/height": [height],
                    "image/width": [width],
                    "image/colorspace": [b"RGB"],
                    "image/channels": [3],
                    LABEL: [sample.label + first_label],
                    "image/class/synset": [name.encode()],
                    "image/class/text": [name.encode()],
                    "image/format": [extension.upper().encode()],
                    "image/filename": [f"{name}_{number:07d}.{extension}".encode()],
                    IMAGE: [sample.data],
                }
            )

    return write_records(path, examples())


def shard_name(split: str, shard: int, shards: int) -> str:
    """What TensorFlow's builders call a shard.

    >>> shard_name("validation", 3, 128)
    'validation-00003-of-00128'
    """
    return f"{split}-{shard:05d}-of-{shards:05d}"


def _records(data: memoryview, path: Path) -> Iterator[tuple[int, int]]:
    """Where the data of each record begins and ends; all lengths are checked."""
    at = number = 0
    while at < len(data):
        name = f"{path}, record {number} at byte {at}"
        if at + _HEAD.size > len(data):
            raise BadData(f"{name} ends inside its header: the file was cut off. Fetch or make it again.")
        nbytes, crc = _HEAD.unpack_from(data, at)
        if masked(data[at : at + 8]) != crc:
            if at == 0 and bytes(data[:2]) == b"\x1f\x8b":
                raise BadData(f"{path} is compressed, which has no random access. Unpack it with gunzip.")
            what = "is damaged: its length has another checksum" if at else "has no header of a TFRecord file"
            raise BadData(f"{name} {what}. Fetch or make it again.")
        start = at + _HEAD.size
        at = start + nbytes + _FOOT.size
        if at > len(data):
            raise BadData(
                f"{name} has {nbytes} bytes, but the file ends after {len(data) - start} of them: it was cut off. "
                "Fetch or make it again."
            )
        yield start, start + nbytes
        number += 1
