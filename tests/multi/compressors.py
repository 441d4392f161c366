"""What the compressors of ``hora.torch.compression`` must give, in numpy: all ranks of a job in one place.

Written from the formulas in their docstrings, in 64 bits, and not from their code. Each function takes what the ranks
bring (gradient plus error) and returns what each of them contributes to the sum; the rest is error feedback, here.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, np.dtype[np.float64]]
Contribute = Callable[[list[Array]], list[Array]]


class Simulated:
    """A compressor on every rank of a set."""

    def __init__(self, contribute: Contribute) -> None:
        self._contribute = contribute
        self.errors: list[Array] | None = None

    def sum(self, gradients: list[Array]) -> Array:
        """One step; what the ranks' contributions add up to."""
        errors = self.errors or [np.zeros_like(g) for g in gradients]
        brought = [g + e for g, e in zip(gradients, errors, strict=True)]
        sent = self._contribute([x.copy() for x in brought])
        self.errors = [x - s for x, s in zip(brought, sent, strict=True)]
        return np.sum(sent, axis=0)


def top_k(ratio: float) -> Contribute:
    def largest(x: Array) -> Array:
        flat = x.reshape(-1)
        kept = np.argsort(-np.abs(flat), kind="stable")[: int(np.ceil(ratio * flat.size))]
        sent = np.zeros_like(flat)
        sent[kept] = flat[kept]
        return sent.reshape(x.shape)

    return lambda brought: [largest(x) for x in brought]


def one_bit() -> Contribute:
    return lambda brought: [np.where(x >= 0, 1.0, -1.0) * np.abs(x).mean() for x in brought]


def int8(chunk: int) -> Contribute:
    def rounded(x: Array) -> Array:
        sent = x.reshape(-1).copy()
        for first in range(0, sent.size, chunk):
            part = sent[first : first + chunk]
            scale = np.abs(part).max() / 127
            part[:] = np.rint(part / scale) * scale if scale else 0
        return sent.reshape(x.shape)

    return lambda brought: [rounded(x) for x in brought]


def power_sgd(rank: int, name: str, shape: tuple[int, ...]) -> Contribute:
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    columns = int(np.prod(shape[1:]))
    directions = torch.randn(columns, rank, generator=generator, dtype=torch.float64).numpy()

    def projected(brought: list[Array]) -> list[Array]:
        nonlocal directions
        matrices = [x.reshape(len(x), -1) for x in brought]
        v = np.linalg.qr(directions)[0]
        u = np.linalg.qr(np.sum([m @ v for m in matrices], axis=0))[0]
        directions = np.sum([m.T @ u for m in matrices], axis=0)
        return [(u @ u.T @ m).reshape(x.shape) for m, x in zip(matrices, brought, strict=True)]

    return projected
