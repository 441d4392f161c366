"""What tests of workloads share: Hora is left again after each, and so are its signal handlers; small data sets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import hora.torch as hvd
from hora.data.idx import write_idx
from hora.engine import preempt


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """One thread, because tests run beside each other; and nothing of a run stays in this process."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    hvd.shutdown()
    preempt._forget()
    torch.set_num_threads(threads)


def write_digits(folder: Path, train: int = 600, test: int = 131) -> Path:
    """Images with a bright bar where their label says: learned in seconds."""
    random = np.random.default_rng(3)
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", train), ("t10k", test)):
        labels = random.integers(0, 10, count).astype(np.uint8)
        images = random.integers(0, 60, (count, 28, 28)).astype(np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[2 * label + 3 : 2 * label + 6, 4:24] = 250
        write_idx(folder / f"{part}-images-idx3-ubyte.gz", images)
        write_idx(folder / f"{part}-labels-idx1-ubyte", labels)
    return folder


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_digits(tmp_path_factory.mktemp("digits"))
