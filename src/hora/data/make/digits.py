"""Handwritten digits that nobody wrote, as IDX files of MNIST's names and shapes.

Each digit is one of a few ways to write it: strokes through control points. Every sample moves the points a little,
slants, turns and stretches the whole, and takes a pen of its own width; some have a stray stroke beside them. A linear
classifier gets most of them, a small convolutional network nearly all.
"""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hora.data.idx import write_idx
from hora.data.make.generate import Made, generate, over_processes, part_rng
from hora.data.once import StatusReporter
from hora.errors import UsageError

__all__ = ["draw_digits", "make_digits"]

PART = 250  # samples with random numbers of their own
_REVISION = 1  # of what is drawn: data of another one is other data
_AT_ONCE = 25  # images
_FINENESS = 4  # segments from one control point to the next

_Floats = npt.NDArray[np.float32]

# The ways to write each digit: strokes through points, each of four figures, x to the right and y down in hundredths.
_WAYS = (
    (  # 0
        "5010 2525 2050 2778 5090 7377 8050 7323 5010",
        "6212 3520 2455 4088 6680 7645 6216 4518",
    ),
    (  # 1
        "5010 5050 5090",
        "3330 4520 5510, 5510 5450 5390",
        "3528 5210, 5210 5290, 3390 7090",
    ),
    (  # 2
        "2530 3513 6012 7230 6052 4070 2488, 2488 7688",
        "2428 4510 7024 6250 4078 2784 3070 5080 7886",
    ),
    (  # 3
        "2718 5010 7022 6640 4548, 4548 7056 7475 5290 2582",
        "2612 7212 4544, 4544 7252 7476 5090 2582",
    ),
    (  # 4
        "5810 4038 2262, 2262 8062, 6036 6090",
        "2812 2634 3052 5054 7248, 7212 7050 6890",
    ),
    (  # 5
        "7212 3412, 3412 3045, 3045 5240 7255 7078 4890 2582",
        "7410 5014 3620 3440 5646 7064 6086 3086",
    ),
    (  # 6
        "6612 4226 2852 2876 4890 7078 6858 4850 3064",
        "5010 3440 2670 4288 6484 6664 4656 2870",
    ),
    (  # 7
        "2413 7613, 7613 5848 4290",
        "2413 7413, 7413 5650 4690, 3850 7250",
        "2624 2812 5415 7612, 7612 6044 5090",
    ),
    (  # 8
        "5048 3034 3416 5010 6616 7034 5048, 5048 2664 3084 5090 7084 7464 5048",
        "7020 4810 3024 4644 7066 5690 3080 3858 5842 7020",
    ),
    (  # 9
        "7030 5512 3418 2838 4452 6444 7030, 7030 7060 6290",
        "7028 5010 3024 3646 6046 7028, 7028 7256 6082 3488",
    ),
)  # fmt: skip


class _Way(NamedTuple):
    """A way to write a digit: ``points = curve @ control``, joined by segments from ``begin`` to ``end``."""

    control: _Floats
    curve: _Floats
    begin: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]


def make_digits(
    folder: Path,
    *,
    samples: int = 60_000,
    test: int = 10_000,
    size: int = 28,
    seed: int = 42,
    jobs: int = 1,
    reporter: StatusReporter | None = None,
) -> Made:
    """Write ``samples`` digits to train on and ``test`` to test on, ``size`` pixels wide and high.

    >>> import tempfile
    >>> from hora.data.idx import read_idx
    >>> with tempfile.TemporaryDirectory() as place:
    ...     made = make_digits(Path(place) / "digits", samples=20, test=10)
    ...     read_idx(made.folder / "train-images-idx3-ubyte", 3).shape
    (20, 28, 28)
    """
    if min(samples, test) < 1:
        raise UsageError(f"{samples} samples and {test} to test on: there must be at least one of each.")
    if not 8 <= size <= 512:
        raise UsageError(f"size={size} pixels: digits are drawn from 8 to 512 pixels wide.")

    def fill(folder: Path, reporter: StatusReporter) -> None:
        splits = (("train", samples), ("t10k", test))
        parts = [(split, number) for split, (_, count) in enumerate(splits) for number in range(-(-count // PART))]
        done = 0
        with contextlib.closing(over_processes(functools.partial(_draw, size, seed), parts, jobs)) as drawn:
            for name, count in splits:
                images, labels = np.empty((count, size, size), np.uint8), np.empty(count, np.uint8)
                for first in range(0, count, PART):
                    some, labelled = next(drawn)
                    last = min(count, first + PART)
                    images[first:last], labels[first:last] = some[: last - first], labelled[: last - first]
                    done += last - first
                    reporter.progress("drawing digits", done, samples + test, "images")
                write_idx(folder / f"{name}-images-idx3-ubyte", images)
                write_idx(folder / f"{name}-labels-idx1-ubyte", labels)

    facts = {
        "generator": "digits", "revision": _REVISION, "seed": seed, "samples": samples, "test": test, "size": size,
    }  # fmt: skip
    return generate(folder, fill, facts, nbytes=(samples + test) * (size * size + 1), reporter=reporter)


def _draw(size: int, seed: int, part: tuple[int, int]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    return draw_digits(size, seed, *part)


def draw_digits(size: int, seed: int, split: int, number: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """The images and labels of one part.

    >>> images, labels = draw_digits(28, 42, 0, 0)
    >>> images.shape, int(images.max()) > 200, sorted(set(labels.tolist()))
    ((250, 28, 28), True, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    """
    rng = part_rng(seed, split, number)
    labels = rng.integers(0, 10, PART)
    ways = _ways()
    most = max(len(way.begin) for of_digit in ways for way in of_digit) + 1  # one for the stray stroke
    segments = np.empty((PART, most, 4), np.float32)
    choice, shake = rng.random(PART), rng.normal(0, 0.034, (PART, 32, 2)).astype(np.float32)
    for n, label in enumerate(labels):
        way = ways[label][int(choice[n] * len(ways[label]))]
        points = way.curve @ (way.control + shake[n, : len(way.control)])
        drawn = np.concatenate([points[way.begin], points[way.end]], axis=1)
        segments[n] = drawn[np.minimum(np.arange(most), len(drawn) - 1)]  # the last one again, to the same number
    segments = _slant(segments, rng)
    return _render(segments, _stray(segments, rng), size, rng), labels.astype(np.uint8)


def _slant(segments: _Floats, rng: np.random.Generator) -> _Floats:
    """Turned, sheared, stretched and moved about, each by an affine map of its own."""
    turn, shear = rng.normal(0, 0.16, PART), rng.normal(0, 0.22, PART)
    wide, high = rng.uniform(0.62, 1.0, PART), rng.uniform(0.72, 1.0, PART)
    cos, sin = np.cos(turn), np.sin(turn)
    maps = np.array([[cos * wide, (-sin + shear * cos) * high], [sin * wide, (cos + shear * sin) * high]], np.float32)
    moved = rng.normal(0, 0.035, (PART, 1, 1, 2)).astype(np.float32) + np.float32(0.5)
    ends = segments.reshape(PART, -1, 2, 2) - np.float32(0.5)
    slanted: _Floats = np.einsum("xyn,nsey->nsex", maps, ends) + moved
    return slanted.reshape(segments.shape)


def _stray(segments: _Floats, rng: np.random.Generator) -> _Floats:
    """A short, faint stroke near the edge of every third image: the last segment, and how dark it is."""
    along, angle, length = rng.uniform(0, 2 * np.pi, PART), rng.uniform(0, np.pi, PART), rng.uniform(0.1, 0.3, PART)
    begin = 0.5 + 0.45 * np.stack([np.cos(along), np.sin(along)], axis=1)
    end = begin + length[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    segments[:, -1] = np.concatenate([begin, end], axis=1)
    return np.where(rng.random(PART) < 1 / 3, rng.uniform(0.4, 0.8, PART), 0).astype(np.float32)


def _render(segments: _Floats, ink: _Floats, size: int, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """A pen's line is as dark as a pixel is near it; its edge is as wide as a pixel."""
    pen = rng.uniform(0.022, 0.055, (PART, 1, 1)).astype(np.float32)
    contrast = rng.uniform(0.65, 1.0, (PART, 1, 1)).astype(np.float32)
    noise = rng.standard_normal((PART, size, size), np.float32) * np.float32(0.06)
    digit, stray = _distance(segments[:, :-1], size), _distance(segments[:, -1:], size)
    canvas = np.maximum(_dark(pen - digit, size), _dark(pen - stray, size) * ink[:, None, None]) * contrast
    canvas = np.where(canvas > 0, canvas + noise, 0)
    canvas = np.clip(canvas, 0, 1) * np.float32(255)
    return canvas.astype(np.uint8)


def _dark(inside: _Floats, size: int) -> _Floats:
    shade: _Floats = np.clip(inside * np.float32(size) + np.float32(0.5), 0, 1)
    return shade


def _distance(segments: _Floats, size: int) -> _Floats:
    """The distance of every pixel from the nearest of its image's segments, for a few images at a time (cache)."""
    centres = (np.arange(size, dtype=np.float32) + np.float32(0.5)) / np.float32(size)
    nearest = np.full((len(segments), size, size), np.inf, np.float32)
    for first in range(0, len(segments), _AT_ONCE):
        few, near = segments[first : first + _AT_ONCE], nearest[first : first + _AT_ONCE]
        along, there = np.empty_like(near), np.empty_like(near)
        for s in range(few.shape[1]):
            x0, y0, x1, y1 = (few[:, s, i, None, None] for i in range(4))
            dx, dy = x1 - x0, y1 - y0
            scale = 1 / np.maximum(dx * dx + dy * dy, np.float32(1e-8))
            x, y = centres[None, None, :] - x0, centres[None, :, None] - y0
            np.add(x * (dx * scale), y * (dy * scale), out=along)  # where its foot is, from 0 at the start to 1
            np.maximum(along, 0, out=along)
            np.minimum(along, 1, out=along)
            np.multiply(along, dx, out=there)
            np.subtract(x, there, out=there)
            np.multiply(there, there, out=there)
            np.multiply(along, dy, out=along)
            np.subtract(y, along, out=along)
            np.multiply(along, along, out=along)
            np.add(along, there, out=along)
            np.minimum(near, along, out=near)
    return np.sqrt(nearest)


@functools.cache
def _ways() -> tuple[tuple[_Way, ...], ...]:
    return tuple(tuple(_way(text) for text in of_digit) for of_digit in _WAYS)


def _way(text: str) -> _Way:
    """Strokes as one matrix: a smooth curve (Catmull-Rom) through the control points is linear in them."""
    strokes = [[(int(point[:2]) / 100, int(point[2:]) / 100) for point in stroke.split()] for stroke in text.split(",")]
    count = sum(len(stroke) for stroke in strokes)
    rows: list[npt.NDArray[np.float64]] = []
    begin: list[int] = []
    first = 0
    for stroke in strokes:
        last = first + len(stroke) - 1
        for left in range(first, last):
            for step in range(_FINENESS):
                begin.append(len(rows))
                rows.append(_weights(left, step / _FINENESS, first, last, count))
        rows.append(_weights(last - 1, 1.0, first, last, count))
        first = last + 1
    control = np.array([point for stroke in strokes for point in stroke], np.float32)
    starts = np.array(begin)
    return _Way(control, np.array(rows, np.float32), starts, starts + 1)


def _weights(left: int, t: float, first: int, last: int, count: int) -> npt.NDArray[np.float64]:
    """How much each control point counts at ``t`` between ``left`` and the next one."""
    powers = np.array([1, t, t**2, t**3])
    basis = np.array([[0, 2, 0, 0], [-1, 0, 1, 0], [2, -5, 4, -1], [-1, 3, -3, 1]]) / 2
    row = np.zeros(count)
    for weight, point in zip(powers @ basis, range(left - 1, left + 3), strict=True):
        row[min(max(point, first), last)] += weight
    return row
