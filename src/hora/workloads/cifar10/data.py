"""CIFAR-10 in memory: 50,000 and 10,000 images of 32x32, from its binary files; shifts and flips on torch ops.

As in the course: pixels from 0 to 1 less the mean of the training images at that pixel, which moves along with the
image when that is shifted.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from hora.data.cifar import TEST_FILE, TRAIN_FILES, Images, read_cifar
from hora.data.generated import is_generated
from hora.data.loader import BatchPlan
from hora.workloads.missing import check_folder
from hora.workloads.order import random_seed

__all__ = ["Cifar", "Photographs", "load", "shifted"]

SHIFT = 0.1  # of the width, to each side
_AUGMENTATION = 0xA6  # sets these random numbers apart from others of the same seed
_FOLDER = "cifar-10-batches-bin"  # what the archive unpacks to


class Photographs(NamedTuple):
    """Images and their labels, as bytes; a batch of them becomes numbers when it is taken."""

    pixels: torch.Tensor  # (N, 3, 32, 32) uint8
    labels: torch.Tensor  # (N,) int64
    mean: torch.Tensor  # (3, 32, 32), of the training images from 0 to 1

    def batch(self, indices: npt.NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        """The batch, unchanged."""
        chosen = torch.from_numpy(indices)
        return self.pixels[chosen].float().div_(255.0).sub_(self.mean), self.labels[chosen]

    def augmented(self, plan: BatchPlan, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Shifted by up to a tenth each way and flipped half of the time; how depends on the plan and the seed only."""
        generator = torch.Generator().manual_seed(random_seed(seed, _AUGMENTATION, plan.epoch, plan.worker, plan.step))
        chosen, count = torch.from_numpy(plan.indices), len(plan.indices)
        most = SHIFT * self.pixels.shape[-1]
        down, right = ((torch.rand(2, count, generator=generator) * 2 - 1) * most).round().long()
        flip = torch.rand(count, generator=generator) < 0.5
        return shifted(self.pixels[chosen], self.mean, down, right, flip), self.labels[chosen]

    def __len__(self) -> int:
        return len(self.labels)


def shifted(
    pixels: torch.Tensor, mean: torch.Tensor, down: torch.Tensor, right: torch.Tensor, flip: torch.Tensor
) -> torch.Tensor:
    """Images less their mean, shifted by whole pixels, what comes into view being the nearest pixel, then flipped.

    >>> row = torch.tensor([10, 20, 30], dtype=torch.uint8).expand(2, 1, 3, 3)
    >>> no, zero = torch.tensor([False, True]), torch.zeros(1, 3, 3)
    >>> (255 * shifted(row, zero, torch.tensor([0, 0]), torch.tensor([1, 0]), no))[:, 0, 0].round()
    tensor([[10., 10., 20.],
            [30., 20., 10.]])
    """
    count, channels, height, width = pixels.shape
    rows = (torch.arange(height) - down[:, None]).clamp_(0, height - 1)
    columns = torch.where(flip[:, None], torch.arange(width - 1, -1, -1), torch.arange(width))
    columns = (columns - right[:, None]).clamp_(0, width - 1)
    image = torch.arange(count)[:, None, None, None]
    channel = torch.arange(channels)[:, None, None]
    where = channel, rows[:, None, :, None], columns[:, None, None, :]
    return pixels[image, *where].float().div_(255.0).sub_(mean[where])


class Cifar(NamedTuple):
    train: Photographs
    test: Photographs
    generated: bool


def load(folder: Path) -> Cifar:
    """Read and check the whole data set."""
    place = folder / _FOLDER if (folder / _FOLDER).is_dir() else folder
    check_folder("cifar10", place)
    generated = is_generated(folder)  # then there may be fewer files
    train = read_cifar(*(place / name for name in TRAIN_FILES if not generated or (place / name).exists()))
    test = read_cifar(place / TEST_FILE)
    mean = torch.from_numpy((train.pixels.mean(0, dtype=np.float64) / 255.0).astype(np.float32))
    return Cifar(_photographs(train, mean), _photographs(test, mean), generated)


def _photographs(images: Images, mean: torch.Tensor) -> Photographs:
    return Photographs(torch.from_numpy(images.pixels), torch.from_numpy(images.labels).long(), mean)
