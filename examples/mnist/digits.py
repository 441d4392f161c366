"""The data of the MNIST pair: the real files if there is a folder with them, else digits that are drawn here.

Nothing is downloaded. The drawn digits are seven-segment ones of MNIST's size, shifted, slanted, dimmed and noisy; they
stand in for MNIST where there is no network, and accuracies on them say nothing about MNIST itself.
"""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

SIDE = 28
MEAN, DEVIATION = 0.1307, 0.3081  # of MNIST's pixels
HELD_OUT = 2_000
FILES = {"train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
         "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")}  # fmt: skip

SEGMENTS = {  # of each digit: top, top left, top right, middle, bottom left, bottom right, bottom
    0: "1110111", 1: "0010010", 2: "1011101", 3: "1011011", 4: "0111010",
    5: "1101011", 6: "1101111", 7: "1010010", 8: "1111111", 9: "1111011",
}  # fmt: skip
BARS = ((4, 6, 9, 19), (5, 14, 8, 10), (5, 14, 18, 20), (13, 15, 9, 19), (14, 23, 8, 10), (14, 23, 18, 20),
        (22, 24, 9, 19))  # fmt: skip


def load(folder: Path | None, count: int) -> tuple[TensorDataset, TensorDataset]:
    """What to train on and what to hold out; ``count`` images at most to train on."""
    if folder is None:
        print("no --data folder: training on digits that are drawn here instead of MNIST", flush=True)
        return TensorDataset(*draw(count, seed=1)), TensorDataset(*draw(HELD_OUT, seed=2))
    images, labels = (_read(folder, name) for name in FILES["train"])
    held_out_images, held_out_labels = (_read(folder, name) for name in FILES["test"])
    return (
        TensorDataset(_pixels(images[:count]), labels[:count].long()),
        TensorDataset(_pixels(held_out_images), held_out_labels.long()),
    )


def draw(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images like MNIST's and their labels, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    glyphs = torch.zeros(10, SIDE, SIDE)
    for digit, lit in SEGMENTS.items():
        for on, (top, bottom, left, right) in zip(lit, BARS, strict=True):
            if on == "1":
                glyphs[digit, top:bottom, left:right] = 1
    labels = torch.randint(10, (count,), generator=generator)
    shape = torch.eye(2, 3).repeat(count, 1, 1)
    shape[:, 0, 1] = torch.empty(count).uniform_(-0.4, 0.4, generator=generator)  # slant
    shape[:, :, 2] = torch.empty(count, 2).uniform_(-0.2, 0.2, generator=generator)  # shift
    grid = torch.nn.functional.affine_grid(shape, [count, 1, SIDE, SIDE], align_corners=False)
    images = torch.nn.functional.grid_sample(glyphs[labels].unsqueeze(1), grid, align_corners=False)
    images *= torch.empty(count, 1, 1, 1).uniform_(0.4, 1.0, generator=generator)
    images += 0.3 * torch.randn(images.shape, generator=generator)
    return (images.clamp(0, 1) - MEAN) / DEVIATION, labels


def _pixels(images: torch.Tensor) -> torch.Tensor:
    return (images.unsqueeze(1).float() / 255 - MEAN) / DEVIATION


def _read(folder: Path, name: str) -> torch.Tensor:
    """An IDX file, packed or not: a magic number with the number of dimensions, the dimensions, then bytes."""
    plain, packed = folder / name, folder / f"{name}.gz"
    if not plain.exists() and not packed.exists():
        raise SystemExit(f"--data {folder}: there is no {name} or {name}.gz in it; MNIST comes as four such files")
    data = plain.read_bytes() if plain.exists() else gzip.decompress(packed.read_bytes())
    (magic,) = struct.unpack_from(">I", data)
    if magic >> 8 != 8:
        raise SystemExit(f"{folder / name} is not an IDX file of bytes: it begins with {magic:#010x}")
    sizes = struct.unpack_from(f">{magic & 0xFF}I", data, 4)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8, offset=4 + 4 * len(sizes)).reshape(sizes)
