"""MNIST in memory: 60,000 and 10,000 images of 28x28, from the four IDX files, plain or gzipped."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from hora.data.generated import is_generated
from hora.data.idx import find_idx, read_idx
from hora.errors import BadData
from hora.workloads.missing import check_folder

__all__ = ["Digits", "Mnist", "load"]

MEAN, DEVIATION = 0.1307, 0.3081  # of the training pixels, as Horovod's example has them
CLASSES = 10


class Digits(NamedTuple):
    """Images and their labels, as bytes; a batch of them becomes numbers when it is taken."""

    images: torch.Tensor  # (N, 1, 28, 28) uint8
    labels: torch.Tensor  # (N,) int64
    normalized: bool = False

    def batch(self, indices: npt.NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        """Pixels from 0 to 1, or with mean 0 and deviation 1 if ``normalized``; and labels.

        >>> Digits(torch.full((2, 1, 28, 28), 255, dtype=torch.uint8), torch.tensor([3, 8])).batch(np.array([1]))[1]
        tensor([8])
        """
        chosen = torch.from_numpy(indices)
        pixels = self.images[chosen].float().div_(255.0)
        return (pixels.sub_(MEAN).div_(DEVIATION) if self.normalized else pixels), self.labels[chosen]

    def __len__(self) -> int:
        return len(self.labels)


class Mnist(NamedTuple):
    train: Digits
    test: Digits
    generated: bool


def load(folder: Path, normalized: bool = False) -> Mnist:
    """Read and check the whole data set."""
    check_folder("mnist", folder)
    return Mnist(_read(folder, "train", normalized), _read(folder, "t10k", normalized), is_generated(folder))


def _read(folder: Path, part: str, normalized: bool) -> Digits:
    images = read_idx(find_idx(folder, f"{part}-images-idx3-ubyte"), dimensions=3)
    labels = read_idx(find_idx(folder, f"{part}-labels-idx1-ubyte"), dimensions=1)
    if len(images) != len(labels) or images.shape[1:] != (28, 28) or not len(labels):
        raise BadData(
            f"{folder}: {part} has images of shape {images.shape} and {len(labels)} labels; as many of each, of 28x28, "
            "are wanted. Fetch the data again."
        )
    if (largest := int(labels.max())) >= CLASSES:
        raise BadData(f"{folder}: {part} has a label {largest}; digits are 0 to 9. Fetch the data again.")
    return Digits(torch.from_numpy(images)[:, None], torch.from_numpy(labels).long(), normalized)
