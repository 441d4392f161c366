"""Images as ImageNet's networks want them: cut out, resized, mirrored, in batches.

The cuts are torchvision's: for training RandomResizedCrop and a mirror, for validation the shorter side resized and the
centre. Random numbers come from (seed, epoch, sample), so an image is the same whichever process makes it. Batches
are bytes until they are on the trainer's device: a quarter of what floats would take on the way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hora.data import jpeg
from hora.data.loader import BatchPlan, empty
from hora.data.source import Source

__all__ = ["Batch", "Box", "TrainingBatches", "ValidationBatches", "centre", "normalised", "random_box"]

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's pixels, from 0 to 1
AREA, ASPECT = (0.08, 1.0), (3 / 4, 4 / 3)
TRIES = 10

Batch = tuple[Tensor, Tensor]  # (n, 3, size, size) bytes, (n) labels


class Box(NamedTuple):
    """A part of an image."""

    top: int
    left: int
    height: int
    width: int


def random_box(height: int, width: int, random: np.random.Generator) -> Box:
    """A box of random area and aspect at a random place; the largest possible in the middle if ten do not fit.

    >>> box = random_box(375, 500, np.random.default_rng(1))
    >>> 0 <= box.top <= 375 - box.height and 0 <= box.left <= 500 - box.width
    True
    >>> random_box(10, 1000, np.random.default_rng(1))     # too flat for any
    Box(top=0, left=493, height=10, width=13)
    """
    for _ in range(TRIES):
        area = height * width * random.uniform(*AREA)
        aspect = math.exp(random.uniform(math.log(ASPECT[0]), math.log(ASPECT[1])))
        tall, wide = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
        if 0 < tall <= height and 0 < wide <= width:
            return Box(int(random.integers(height - tall + 1)), int(random.integers(width - wide + 1)), tall, wide)
    tall = min(height, round(width / ASPECT[0]))
    wide = min(width, round(height * ASPECT[1]))
    return Box((height - tall) // 2, (width - wide) // 2, tall, wide)


def centre(height: int, width: int, shorter: int, size: int) -> tuple[int, int, Box]:
    """Height and width after the shorter side is resized, and the middle of that.

    >>> centre(375, 500, 256, 224)
    (256, 341, Box(top=16, left=58, height=224, width=224))
    """
    tall = shorter if height <= width else int(shorter * height / width)
    wide = shorter if width <= height else int(shorter * width / height)
    return tall, wide, Box(round((tall - size) / 2), round((wide - size) / 2), size, size)


class TrainingBatches:
    """Batches for training: ``training[plan]``."""

    def __init__(self, source: Source, size: int, seed: int) -> None:
        self._source, self._size, self._seed = source, size, seed

    def __getitem__(self, plan: BatchPlan) -> Batch:
        images, labels = _blank(len(plan.indices), self._size)
        for place, index, (data, label), name in _read(self._source, plan):
            random = np.random.default_rng((self._seed, plan.epoch, index))
            height, width = jpeg.size(data, name=name)
            box = random_box(height, width, random)
            image = _resized(_cut(data, box, (height, width), self._size, name), self._size, self._size)
            images[place] = image.flip(2) if random.random() < 0.5 else image
            labels[place] = label
        return images, labels


class ValidationBatches:
    """Batches for validation: ``validation[plan]``."""

    def __init__(self, source: Source, size: int, shorter: int) -> None:
        self._source, self._size, self._shorter = source, size, shorter

    def __getitem__(self, plan: BatchPlan) -> Batch:
        images, labels = _blank(len(plan.indices), self._size)
        for place, _, (data, label), name in _read(self._source, plan):
            tall, wide, box = centre(*jpeg.size(data, name=name), self._shorter, self._size)
            image = _resized(jpeg.decode(data, at_least=(tall, wide), name=name), tall, wide)
            images[place] = image[:, box.top : box.top + box.height, box.left : box.left + box.width]
            labels[place] = label
        return images, labels


def _blank(samples: int, size: int) -> Batch:
    return empty((samples, 3, size, size)), torch.empty(samples, dtype=torch.int64)


def _read(source: Source, plan: BatchPlan) -> Iterator[tuple[int, int, tuple[bytes, int], str]]:
    for place, index in enumerate(plan.indices.tolist()):
        yield place, index, source.read(index), source.name(index)


def _cut(data: bytes, box: Box, whole: tuple[int, int], size: int, name: str) -> jpeg.Pixels:
    """What is in the box, decoded no larger than it has to be to fill ``size``."""
    enough = math.ceil(whole[0] * size / box.height), math.ceil(whole[1] * size / box.width)
    pixels = jpeg.decode(data, at_least=enough, name=name)
    down, across = pixels.shape[0] / whole[0], pixels.shape[1] / whole[1]
    top, left = round(box.top * down), round(box.left * across)
    return pixels[top : top + max(1, round(box.height * down)), left : left + max(1, round(box.width * across))]


def _resized(pixels: jpeg.Pixels, height: int, width: int) -> Tensor:
    """(height, width, 3) pixels as a (3, height, width) tensor of another size, antialiased as Pillow does it.

    torch's is several times as fast, as long as the pixels are contiguous with channels last.
    """
    image = torch.from_numpy(np.ascontiguousarray(pixels)[None]).permute(0, 3, 1, 2)
    return functional.interpolate(image, (height, width), mode="bilinear", antialias=True)[0]


def normalised(images: Tensor, device: torch.device | None = None) -> Tensor:
    """Bytes as floats with ImageNet's mean and deviation, on the device that computes.

    >>> white = torch.full((1, 3, 1, 1), 255, dtype=torch.uint8)
    >>> [round(channel, 3) for channel in normalised(white).flatten().tolist()]
    [2.249, 2.429, 2.64]
    """
    images = images.to(device, non_blocking=True)
    mean, std = (torch.tensor(values, device=images.device).view(3, 1, 1) * 255 for values in (MEAN, STD))
    return images.float().sub_(mean).div_(std)
