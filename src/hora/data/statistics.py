"""What is in a set of images: how many of each class, how large, and the mean and deviation of their colours."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from hora.data import jpeg
from hora.data.make.generate import part_rng
from hora.data.source import Source

__all__ = ["describe"]


def describe(source: Source, *, sample: int = 500, seed: int = 42) -> dict[str, Any]:
    """Counts of all; sizes and colours of that many images, drawn at random (of all, if there are fewer).

    >>> class One:
    ...     classes, labels = ("a", "b"), np.array([0, 1, 1])
    ...     def __len__(self): return 3
    ...     def name(self, index): return str(index)
    ...     def read(self, index):
    ...         from hora.data.source import Sample
    ...         return Sample(jpeg.encode_png(np.full((2, 4, 3), 51 * (1 + index), np.uint8)), 0)
    >>> found = describe(One())
    >>> found["images"], found["fewest"], found["most"], found["height"], [round(m, 2) for m in found["mean"]]
    (3, ('a', 1), ('b', 2), 2, [0.4, 0.4, 0.4])
    """
    counts = np.bincount(source.labels, minlength=len(source.classes))
    least, most = int(counts.argmin()), int(counts.argmax())
    chosen = part_rng(seed, 2).permutation(len(source))[:sample]
    sizes, total, squares, pixels, nbytes = [], np.zeros(3), np.zeros(3), 0, 0
    for index in chosen.tolist():
        data = source.read(index).data
        nbytes += len(data)
        sizes.append(jpeg.size(data, name=source.name(index)))
        values = jpeg.decode(data, at_least=(64, 64), name=source.name(index)).reshape(-1, 3) / 255.0
        total, squares, pixels = total + values.sum(0), squares + (values * values).sum(0), pixels + len(values)
    mean = total / pixels
    return {
        "images": len(source),
        "classes": len(source.classes),
        "fewest": (source.classes[least], int(counts[least])),
        "most": (source.classes[most], int(counts[most])),
        "looked_at": len(chosen),
        "bytes": nbytes / len(chosen),
        "height": statistics.median(height for height, _ in sizes),
        "width": statistics.median(width for _, width in sizes),
        "mean": mean.tolist(),
        "deviation": np.sqrt(np.maximum(0, squares / pixels - mean * mean)).tolist(),
    }
