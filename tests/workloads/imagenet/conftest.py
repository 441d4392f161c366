"""A small set of pictures that can be told apart: stripes in four directions, on noise, as JPEG files in folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hora.data import jpeg
from hora.data.generated import mark_generated

CLASSES, SIZE = 4, 40


def write_pictures(folder: Path, each: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:SIZE, 0:SIZE]
    for label in range(CLASSES):
        place = folder / f"n{label:08d}"
        place.mkdir(parents=True)
        for number in range(each):
            angle, phase = label * np.pi / CLASSES + random.normal(0, 0.1), random.uniform(0, 2 * np.pi)
            wave = np.sin((np.cos(angle) * x + np.sin(angle) * y) * random.uniform(0.7, 1.1) + phase)
            colour = np.roll([1.0, 0.3, 0.1], label % 3) * 90
            pixels = 120 + wave[..., None] * colour + random.normal(0, 10, (SIZE, SIZE, 3))
            (place / f"{number}.JPEG").write_bytes(jpeg.encode(pixels.clip(0, 255).astype(np.uint8)))


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """256 for training, and 43 for validation, which two workers cannot divide evenly."""
    folder = tmp_path_factory.mktemp("pictures")
    write_pictures(folder / "train", 64, seed=1)
    write_pictures(folder / "val", 11, seed=2)
    (folder / "val" / "n00000003" / "10.JPEG").unlink()
    mark_generated(folder, generator="stripes", seed=1)
    return folder
