"""Images from one format to another, shrunk on the way if wanted: folders, TFRecord shards, tar shards.

A data set is written in parts: a class's folder, or a shard. Each is complete or absent, so an interrupted conversion
continues with the parts that are missing or have another size than they were written with (``PREPARED.json`` has the
sizes, and says what they were made from and how, so that nothing is mixed). Every image is decoded once on the way; at
the end what was written is opened and its labels are compared with the source's.
"""

from __future__ import annotations

import errno
import functools
import importlib
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from hora.data import jpeg
from hora.data.generated import mark_generated
from hora.data.make.generate import over_processes, part_rng
from hora.data.once import NoStatus, StatusReporter, folder_lock, whole
from hora.data.published import Tars
from hora.data.shards import shares, write_classes
from hora.data.source import Sample, Source, open_source
from hora.data.tar import write_tar
from hora.data.tfrecord import shard_name, write_tfrecord
from hora.errors import BadData, EnvironmentUnfit, UsageError
from hora.files import replacing, write_json

__all__ = ["FILE", "Converted", "Format", "Shape", "SplitLocation", "convert", "shrunk"]

Format = Literal["folder", "tfrecord", "tar"]
FILE = "PREPARED.json"


class Shape(NamedTuple):
    """How images are stored: unchanged, with a ``shorter`` side of at most this many pixels, or ``square``."""

    shorter: int = 0
    square: int = 0
    quality: int = 90


class SplitLocation(NamedTuple):
    """Where a split is, small enough to be sent to a process: a path and split of ``open_source``, or a saved scan of
    published archives."""

    path: str
    split: str = ""
    scan: bool = False


class Converted(NamedTuple):
    """What was written. ``kept`` of the ``parts`` were there already."""

    folder: Path
    images: dict[str, int]
    classes: int
    parts: int
    kept: int
    nbytes: int
    seconds: float


class _OutputPart(NamedTuple):
    split: str
    name: str  # of the file or folder
    label: int  # of a folder; -1 of a shard
    indices: list[int]
    first: int  # number of its first image in the split


class _ConvertTask(NamedTuple):
    folder: str
    places: dict[str, SplitLocation]
    format: str
    shape: Shape


def convert(
    places: Mapping[str, SplitLocation],
    folder: Path,
    *,
    format: Format = "folder",
    shape: Shape = Shape(),  # noqa: B008  # immutable
    per_shard: int = 1000,
    seed: int = 42,
    jobs: int = 1,
    facts: Mapping[str, Any] | None = None,
    generated: Mapping[str, Any] | None = None,
    reporter: StatusReporter | None = None,
) -> Converted:
    """Write the splits ("train", "val") of a data set into a folder, or what is missing there of them.

    Shards to train on have their images in a random order, of ``seed``, for readers that shuffle only a few at a
    time. ``facts`` tell this source from others; ``generated`` is what is known of data that is.
    """
    began, tell = time.monotonic(), reporter or NoStatus()
    folder = folder.resolve()
    with folder_lock(folder, reporter=tell):
        return _convert(places, folder, format, shape, per_shard, seed, jobs, facts, generated, tell, began)


def _convert(
    places: Mapping[str, SplitLocation],
    folder: Path,
    format: str,
    shape: Shape,
    per_shard: int,
    seed: int,
    jobs: int,
    facts: Mapping[str, Any] | None,
    generated: Mapping[str, Any] | None,
    tell: StatusReporter,
    began: float,
) -> Converted:
    sources = {split: _opened(place) for split, place in places.items()}
    classes = next(iter(sources.values())).classes
    if any(source.classes != classes for source in sources.values()):
        raise BadData(f"{' and '.join(places)} have different classes. Their labels would not match.")
    if format == "folder" and list(classes) != sorted(classes):
        raise BadData(
            "the classes are not in alphabetical order, by which those of an image folder are numbered. Take shards."
        )
    known = {"format": format, "shape": shape._asdict(), "per_shard": per_shard, "seed": seed, **dict(facts or {})}
    known["images"] = {split: len(source) for split, source in sources.items()}
    sizes = _claim(folder, known)
    _tidy(folder)
    parts = [part for split in sources for part in _parts(split, sources[split], format, per_shard, seed)]
    left = [part for part in parts if part.name not in sizes or _size(folder / part.name) != sizes[part.name]]
    task = _ConvertTask(str(folder), dict(places), format, shape)
    done, total = 0, sum(len(part.indices) for part in left)
    try:
        if format != "folder":
            write_classes(folder, classes)
        for part, count in zip(left, over_processes(functools.partial(_write, task), left, jobs), strict=True):
            sizes[part.name] = _size(folder / part.name)
            write_json(folder / FILE, {**known, "parts": sizes}, "--to")
            done += count
            tell.progress("writing", done, total, "images")
        if generated is not None:
            mark_generated(folder, **generated)
    except OSError as error:
        room = "it is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror or str(error)
        raise EnvironmentUnfit(
            f"{error.filename or folder} cannot be written: {room}. Finished files are kept. Free some space, and run "
            "the same command to continue."
        ) from None
    nbytes = _verify(folder, sources, parts)
    write_json(folder / FILE, {**known, "parts": sizes, "complete": True}, "--to")
    counts = {split: len(source) for split, source in sources.items()}
    return Converted(folder, counts, len(classes), len(parts), len(parts) - len(left), nbytes, time.monotonic() - began)


def shrunk(data: bytes, shape: Shape, name: str) -> bytes:
    """An image's file in that shape; as it is, but looked at, if it need not change.

    >>> picture = jpeg.encode(np.zeros((300, 400, 3), np.uint8))
    >>> [jpeg.size(shrunk(picture, shape, "it")) for shape in (Shape(), Shape(shorter=150), Shape(square=250))]
    [(300, 400), (150, 200), (250, 250)]
    """
    height, width = jpeg.size(data, name=name)
    tall, wide = height, width
    if shape.square:
        tall = wide = shape.square
    elif shape.shorter and min(height, width) > shape.shorter:
        scale = shape.shorter / min(height, width)
        tall, wide = round(height * scale), round(width * scale)
    if (tall, wide) == (height, width):
        jpeg.decode(data, at_least=(1, 1), name=name)  # to see that it is complete
        return data
    pixels = jpeg.decode(data, at_least=(tall, wide), name=name)
    image: Any = importlib.import_module("PIL.Image")  # as jpeg.decode needs it
    resized = image.fromarray(pixels).resize((wide, tall), image.Resampling.BICUBIC)
    return jpeg.encode(np.asarray(resized), shape.quality)


# ---- parts ----


def _parts(split: str, source: Source, format: str, per_shard: int, seed: int) -> Iterator[_OutputPart]:
    if format == "folder":
        order = np.argsort(source.labels, kind="stable")
        borders = np.searchsorted(source.labels[order], np.arange(len(source.classes) + 1))
        for label, name in enumerate(source.classes):
            mine = order[borders[label] : borders[label + 1]].tolist()
            if not mine:
                raise BadData(f"class {name} has no image in {split}. Every class needs some in both parts.")
            yield _OutputPart(split, f"{split}/{name}", label, mine, 0)
        return
    order = part_rng(seed, 0).permutation(len(source)) if split == "train" else np.arange(len(source))
    count = -(-len(source) // per_shard)
    said = "validation" if split == "val" and format == "tfrecord" else split  # as TensorFlow's builder calls it
    for number, share in enumerate(shares(len(source), count)):
        name = shard_name(said, number, count) if format == "tfrecord" else f"{split}-{number:06d}.tar"
        yield _OutputPart(split, name, -1, order[share.start : share.stop].tolist(), share.start)


@functools.cache
def _opened(place: SplitLocation) -> Source:
    return Tars.load(Path(place.path)) if place.scan else open_source(Path(place.path), place.split or None)


def _write(task: _ConvertTask, part: _OutputPart) -> int:
    """Write one part, completely or not at all; runs in a process of its own."""
    source, target = _opened(task.places[part.split]), Path(task.folder, part.name)
    names: Sequence[str] | None = getattr(source, "names", None)

    def samples() -> Iterator[Sample]:
        for index in part.indices:
            sample = source.read(index)
            yield Sample(shrunk(sample.data, task.shape, source.name(index)), sample.label)

    if task.format == "tar":
        return write_tar(target, samples(), first=part.first)
    if task.format == "tfrecord":
        return write_tfrecord(target, samples(), source.classes, first=part.first)
    with whole(target) as folder:
        for index, sample in zip(part.indices, samples(), strict=True):
            extension = "png" if sample.data.startswith(jpeg.PNG) else "JPEG"
            name = names[index] if names else f"{source.classes[part.label]}_{index:07d}.{extension}"
            with replacing(folder / name, durable=False) as file:
                file.write(sample.data)
    return len(part.indices)


# ---- before and after ----


def _claim(folder: Path, known: dict[str, Any]) -> dict[str, int]:
    """Make the folder this data set's, and tell the size of each part that is written; refuse a folder that has
    another's, or anything else, in it."""
    if (folder / FILE).exists():
        try:
            found = msgspec.json.decode((folder / FILE).read_bytes(), type=dict[str, Any])
        except (OSError, msgspec.DecodeError) as error:
            raise BadData(f"{folder / FILE} cannot be read: {error}. Give another folder with --to.") from None
        found.pop("complete", None)
        sizes: dict[str, int] = found.pop("parts", {})
        wanted = msgspec.to_builtins(known)
        if found != wanted:
            other = [
                f"made {_MADE.get(name, 'with ' + name)} {_words(found.get(name))}, you give {_words(wanted[name])}"
                for name in wanted
                if found.get(name) != wanted[name]
            ]
            raise UsageError(
                f"{folder} was prepared with other settings ({'; '.join(other) or 'additional ones'}), so it "
                "is not changed. Give another folder with --to, or remove this one."
            )
        return sizes
    if folder.exists() and any(entry for entry in folder.iterdir() if not entry.name.startswith(".")):
        raise UsageError(f"{folder} contains other files, and is not changed. Give another folder with --to.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentUnfit(f"{folder} cannot be made: {error.strerror}. Give another one with --to.") from None
    write_json(folder / FILE, known, "--to")
    return {}


_MADE = {"sources": "from", "images": "of", "format": "as"}


def _words(value: Any) -> str:
    """A value of PREPARED.json, as people read it.

    >>> _words({"train.tar": 1200, "val.tar": 30}), _words({"shorter": 256, "square": 0}), _words("tar"), _words(None)
    ('train.tar 1,200, val.tar 30', 'shorter 256, square 0', 'tar', 'nothing')
    """
    if isinstance(value, dict):
        return ", ".join(f"{name} {_words(each)}" for name, each in value.items())
    return "nothing" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _size(part: Path) -> int:
    """The bytes of a part, a file's or those of all in a folder; -1 if it is not there."""
    if part.is_dir():
        return sum(file.stat().st_size for file in part.iterdir())
    return part.stat().st_size if part.exists() else -1


def _verify(folder: Path, sources: Mapping[str, Source], parts: Sequence[_OutputPart]) -> int:
    """Open what was written, and compare every label; how many bytes it is."""
    for split, source in sources.items():
        written = open_source(folder, split)
        order = [index for part in parts if part.split == split for index in part.indices]
        if written.classes != source.classes or not np.array_equal(written.labels, source.labels[order]):
            raise BadData(
                f"{folder}, {split}: what was written is not what was read ({len(written)} images of "
                f"{len(written.classes)} classes, and {len(source)} of {len(source.classes)}). Something else has "
                "written there. Remove it, and run this again."
            )
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _tidy(folder: Path) -> None:
    """Remove what a process that was killed has left of parts that are incomplete."""
    for path in [*folder.glob(".*.part"), *folder.glob("*/.*.part")]:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
