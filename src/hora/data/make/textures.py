"""Textured images of many classes: JPEG folders in ImageNet's layout, TFRecord or tar shards of them, CIFAR's files,
or the archives that ImageNet is published in.

A class is a combination of a motif, the hue of its foreground, how far it is turned and how much of it is filled; none
of these alone tells it. Images differ in size, position, scale, background, light and noise, and things lie on them.
Mirroring an image and taking a part of it, as training does, leave its class as it is.
"""

from __future__ import annotations

import functools
import math
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from hora.data import jpeg
from hora.data.cifar import TEST_FILE, TRAIN_FILES, write_cifar
from hora.data.make.generate import Made, generate, over_processes, part_rng
from hora.data.make.tars import pack
from hora.data.once import StatusReporter
from hora.data.shards import shares, write_classes
from hora.data.source import Sample
from hora.data.tar import write_tar
from hora.data.tfrecord import shard_name, write_tfrecord
from hora.errors import UsageError
from hora.files import replacing

__all__ = ["FORMATS", "MOST_CLASSES", "Format", "Look", "class_name", "draw_texture", "looks", "make_textures"]

Format = Literal["folder", "tfrecord", "tar", "cifar", "tars"]
FORMATS: tuple[Format, ...] = get_args(Format)
MOST_CLASSES = 1000

_REVISION = 1  # of what is drawn: data of another one is other data
_PART = 100  # images that a process makes at a time
_PER_SHARD = 1000
_CIFAR_SIZE = 32
_SPLITS = {"train": 0, "val": 1}

_Floats = npt.NDArray[np.floating[Any]]
_Pixels = npt.NDArray[np.uint8]


class Look(NamedTuple):
    """What all images of a class have in common."""

    motif: int
    hue: float  # of the foreground, from 0 to 1
    angle: float  # in degrees, to either side
    fill: float
    scale: float


def make_textures(
    folder: Path,
    *,
    samples: int = 5_000,
    val: int = 500,
    classes: int = 10,
    size: int = 256,
    format: Format = "folder",
    seed: int = 42,
    jobs: int = 1,
    reporter: StatusReporter | None = None,
) -> Made:
    """Write ``samples`` images to train on and ``val`` to validate with, their shorter side about ``size`` pixels.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     made = make_textures(Path(place) / "textures", samples=4, val=2, classes=2, size=32)
    ...     sorted(str(path.relative_to(made.folder)) for path in made.folder.glob("val/*/*"))
    ['val/n90000000/n90000000_0000000.JPEG', 'val/n90000001/n90000001_0000001.JPEG']
    """
    _check(samples, val, classes, size, format)
    drawn = "folder" if format == "tars" else format
    task = _TextureTask(seed, classes, _CIFAR_SIZE if format == "cifar" else size, drawn)
    bytes_each = 3 * _CIFAR_SIZE**2 if format == "cifar" else size * size

    def fill(folder: Path, reporter: StatusReporter) -> None:
        if drawn != "folder":
            write_classes(folder, [class_name(label) for label in range(classes)])
        parts, done = [*task.parts("train", samples), *task.parts("val", val)], 0
        for made in over_processes(functools.partial(_write, task, folder), parts, jobs):
            done += made
            reporter.progress("drawing textures", done, samples + val, "images")
        if format == "tars":
            pack(folder, [class_name(label) for label in range(classes)], seed)
            for split in _SPLITS:
                shutil.rmtree(folder / split)

    facts = {
        "generator": "textures", "revision": _REVISION, "seed": seed, "samples": samples, "val": val,
        "classes": classes, "size": task.size, "format": format,
    }  # fmt: skip
    return generate(folder, fill, facts, nbytes=(samples + val) * bytes_each, reporter=reporter)


def class_name(label: int) -> str:
    """A class's name, of the form of ImageNet's, but none of them.

    >>> class_name(7)
    'n90000007'
    """
    return f"n{90_000_000 + label:08d}"


def _check(samples: int, val: int, classes: int, size: int, format: str) -> None:
    if format not in FORMATS:
        raise UsageError(f"format={format!r} is not known. Use one of {', '.join(FORMATS)}.")
    if not 2 <= classes <= MOST_CLASSES:
        raise UsageError(f"{classes} classes: there can be from 2 to {MOST_CLASSES}.")
    if format == "cifar" and classes > 10:
        raise UsageError(
            f"{classes} classes: CIFAR-10's files have room for ten. Give --classes 10, or another format."
        )
    if samples < classes or val < classes:
        raise UsageError(
            f"{samples} images to train on and {val} to validate with are too few for {classes} classes: every class "
            "needs one of each."
        )
    if format == "cifar" and samples < len(TRAIN_FILES):
        raise UsageError(f"{samples} images cannot be divided over CIFAR-10's {len(TRAIN_FILES)} files. Make more.")
    if not 16 <= size <= 2048:
        raise UsageError(f"size={size} pixels: images are drawn from 16 to 2048 pixels wide.")


class _TexturePart(NamedTuple):
    """Some images of a split: those that one process makes, and one file holds unless each has its own."""

    split: str
    file: str
    images: range


class _TextureTask(NamedTuple):
    """What a process needs to know."""

    seed: int
    classes: int
    size: int
    format: str

    def parts(self, split: str, count: int) -> list[_TexturePart]:
        shards = -(-count // _PER_SHARD)
        match self.format:
            case "folder":
                return [
                    _TexturePart(split, "", range(first, min(count, first + _PART))) for first in range(0, count, _PART)
                ]
            case "cifar":
                names: Sequence[str] = TRAIN_FILES if split == "train" else (TEST_FILE,)
            case "tar":
                names = [f"{split}-{shard:06d}.tar" for shard in range(shards)]
            case _:
                said = "validation" if split == "val" else split  # as TensorFlow's builder calls it
                names = [shard_name(said, shard, shards) for shard in range(shards)]
        return [
            _TexturePart(split, name, images) for name, images in zip(names, shares(count, len(names)), strict=True)
        ]


def _write(task: _TextureTask, folder: Path, part: _TexturePart) -> int:
    path, split, first = folder / part.file, part.split, part.images.start
    match task.format:
        case "folder":
            for number, sample in zip(part.images, _samples(task, split, part.images), strict=True):
                name = class_name(sample.label)
                (folder / split / name).mkdir(parents=True, exist_ok=True)
                with replacing(folder / split / name / f"{name}_{number:07d}.JPEG", durable=False) as file:
                    file.write(sample.data)
        case "cifar":
            drawn = [_draw(task, split, number) for number in part.images]
            labels = np.array([number % task.classes for number in part.images], np.uint8)
            write_cifar(path, np.stack(drawn).transpose(0, 3, 1, 2), labels)
        case "tar":
            write_tar(path, _samples(task, split, part.images), first=first)
        case _:
            names = [class_name(label) for label in range(task.classes)]
            write_tfrecord(path, _samples(task, split, part.images), names, first=first)
    return len(part.images)


def _samples(task: _TextureTask, split: str, images: range) -> Iterator[Sample]:
    for number in images:
        yield Sample(jpeg.encode(_draw(task, split, number)), number % task.classes)


def _draw(task: _TextureTask, split: str, number: int) -> _Pixels:
    look = looks(task.classes, task.seed)[number % task.classes]
    rng = part_rng(task.seed, 1 + _SPLITS[split], number)
    if task.format == "cifar":
        return draw_texture(look, task.size, task.size, rng)
    shorter = round(task.size * rng.uniform(0.8, 1.25))
    sides = [shorter, round(shorter * rng.uniform(1, 4 / 3))]
    height, width = rng.permutation(sides).tolist()
    return draw_texture(look, height, width, rng)


@functools.cache
def looks(classes: int, seed: int) -> tuple[Look, ...]:
    """What each class looks like: as few values of every trait as make that many combinations.

    >>> sorted({(look.motif, round(look.hue, 2), round(look.angle)) for look in looks(8, seed=42)})
    [(0, 0.0, 22), (0, 0.0, 68), (0, 0.5, 22), (0, 0.5, 68), (1, 0.0, 22), (1, 0.0, 68), (1, 0.5, 22), (1, 0.5, 68)]
    """
    most = np.array([len(_MOTIFS), 8, 4, 3, 2])
    counts, weights = np.ones(5, int), np.array([3, 3, 2, 1, 0.5])  # scale and filling are the hardest to see
    while counts.prod() < classes:
        counts[np.where(counts < most, counts / weights, np.inf).argmin()] += 1
    chosen = part_rng(seed, 0).permutation(int(counts.prod()))[:classes]
    motifs, hues, angles, fills, scales = np.unravel_index(np.sort(chosen), counts)
    return tuple(
        Look(
            motif=int(motif),
            hue=float(hue / counts[1]),
            angle=float((angle + 0.5) * 90 / counts[2]),
            fill=float((fill + 1) / (counts[3] + 1)),
            scale=float(2.2**scale),
        )
        for motif, hue, angle, fill, scale in zip(motifs, hues, angles, fills, scales, strict=True)
    )


def draw_texture(look: Look, height: int, width: int, rng: np.random.Generator) -> _Pixels:
    """One image of a class.

    >>> draw_texture(looks(10, seed=42)[0], 24, 32, np.random.default_rng(1)).shape
    (24, 32, 3)
    """
    y, x = np.ogrid[:height, :width]
    x, y = x.astype(np.float32), y.astype(np.float32)
    u, v, period = _lattice(look, x, y, min(height, width), rng)
    inside = _MOTIFS[look.motif](u, v, look.fill + rng.uniform(-0.04, 0.04))
    mask = np.clip(inside * period + 0.5, 0, 1)[..., None]
    front, back = _colours(look, rng)
    image = back + mask * (front - back)
    for _ in range(rng.integers(0, 4)):
        image = _cover(image, x, y, rng)
    across, down = rng.uniform(-0.3, 0.3, 2).astype(np.float32)
    image *= (1 + across * (x / width - np.float32(0.5)) + down * (y / height - np.float32(0.5)))[..., None]
    image += rng.standard_normal((height, width, 1), np.float32) * np.float32(rng.uniform(0.01, 0.08))
    pixels: _Pixels = (np.clip(image, 0, 1) * np.float32(255)).astype(np.uint8)
    return pixels


def _lattice(look: Look, x: _Floats, y: _Floats, side: int, rng: np.random.Generator) -> tuple[_Floats, _Floats, float]:
    """Coordinates that repeat with the texture: turned, stretched along one direction, moved and a little bent."""
    period = side / 7 * look.scale * rng.uniform(0.8, 1.25)
    turn = np.radians(look.angle + rng.uniform(-10, 10)) * rng.choice([-1, 1])
    cos, sin = np.float32(np.cos(turn) / period), np.float32(np.sin(turn) / period)
    begin = rng.uniform(0, 1, 2).astype(np.float32)
    u, v = x * cos + y * sin + begin[0], (y * cos - x * sin) / np.float32(1.6) + begin[1]
    bend, wave = np.float32(rng.uniform(0, 0.12)), np.float32(rng.uniform(0, 2 * np.pi))
    u = u + bend * np.sin(v * np.float32(1.5) + wave)
    return u, v, period


def _colours(look: Look, rng: np.random.Generator) -> tuple[_Floats, _Floats]:
    """The foreground has the class's hue; the background is nearly grey, and lighter or darker."""
    light = rng.uniform(0.45, 0.95)
    front = _rgb(look.hue + rng.normal(0, 0.03), rng.uniform(0.45, 0.95), light)
    behind = light + rng.choice([-1, 1]) * rng.uniform(0.1, 0.4)
    back = _rgb(rng.random(), rng.uniform(0, 0.2), float(np.clip(behind, 0.08, 0.95)))
    return front, back


def _rgb(hue: float, saturation: float, value: float) -> _Floats:
    wheel = np.abs((hue * 6 + np.array([0, 4, 2])) % 6 - 3) - 1
    colour: _Floats = value * (1 - saturation * (1 - np.clip(wheel, 0, 1)))
    return colour.astype(np.float32)


def _cover(image: _Floats, x: _Floats, y: _Floats, rng: np.random.Generator) -> _Floats:
    """Something of one colour lies on it: an ellipse or a box."""
    height, width = image.shape[:2]
    at, half = rng.uniform(0, 1, 2) * (width, height), rng.uniform(0.06, 0.22, 2) * (width, height)
    dx, dy = np.abs(x - np.float32(at[0])) / np.float32(half[0]), np.abs(y - np.float32(at[1])) / np.float32(half[1])
    covered = dx * dx + dy * dy < 1 if rng.random() < 0.5 else np.maximum(dx, dy) < 1
    colour = _rgb(rng.random(), rng.uniform(0, 0.8), rng.uniform(0.1, 1))
    return np.where(covered[..., None], colour, image)


# ---- motifs: how far inside the foreground a point is, in periods; ``fill`` is how much of it all is foreground ----


def _saw(t: _Floats) -> _Floats:
    """The distance from the nearest middle between two whole numbers: 0 there, and 1/2 at whole numbers."""
    t = t - np.floor(t)
    t -= 0.5
    return np.abs(t, out=t)


def _round(u: _Floats, v: _Floats) -> _Floats:
    """The distance from the nearest point of the lattice."""
    u, v = _saw(u), _saw(v)
    u *= u
    v *= v
    u += v
    return np.sqrt(u, out=u)


def _stripes(u: _Floats, v: _Floats, fill: float) -> _Floats:
    return fill / 2 - _saw(u)


def _checks(u: _Floats, v: _Floats, fill: float) -> _Floats:
    one, other = 0.25 - _saw(u), 0.25 - _saw(v)
    edge = np.minimum(np.abs(one), np.abs(other))
    inside: _Floats = np.where(one * other > 0, edge, -edge)
    return inside + (fill - 0.5) / 4


def _dots(u: _Floats, v: _Floats, fill: float) -> _Floats:
    return math.sqrt(fill / math.pi) - _round(u, v)


def _rings(u: _Floats, v: _Floats, fill: float) -> _Floats:
    away: _Floats = np.abs(_round(u, v) - 0.32)
    return fill / 6 + 0.02 - away


def _grid(u: _Floats, v: _Floats, fill: float) -> _Floats:
    return (1 - math.sqrt(1 - fill)) / 2 - np.minimum(_saw(u), _saw(v))


def _zigzag(u: _Floats, v: _Floats, fill: float) -> _Floats:
    return (fill / 2 - _saw(u + 2 * _saw(v))) / 2


_MOTIFS = (_stripes, _dots, _zigzag, _checks, _rings, _grid)
