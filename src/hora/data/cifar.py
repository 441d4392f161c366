"""CIFAR-10's binary form: records of one label byte and 3,072 pixel bytes, channel by channel."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hora.errors import BadData
from hora.files import replacing

__all__ = ["RECORD_BYTES", "TEST_FILE", "TRAIN_FILES", "Images", "read_cifar", "records_of", "write_cifar"]

RECORD_BYTES = 1 + 3 * 32 * 32
TRAIN_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_FILE = "test_batch.bin"


class Images(NamedTuple):
    """``pixels`` is (N, 3, 32, 32), ``labels`` (N,), both uint8."""

    pixels: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.uint8]


def read_cifar(*paths: Path) -> Images:
    """The images of one or several files, in order.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_cifar(Path(folder) / "test_batch.bin", np.zeros((2, 3, 32, 32), np.uint8), np.array([3, 9], np.uint8))
    ...     read_cifar(Path(folder) / "test_batch.bin").labels
    array([3, 9], dtype=uint8)
    """
    parts = []
    for path in paths:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise BadData(
                f"{path} cannot be read: {error.strerror}. Check --data, or use 'hora data get cifar10'."
            ) from None
        if not data or len(data) % RECORD_BYTES:
            raise BadData(
                f"{path} has {len(data)} bytes, which is not a whole number of records of {RECORD_BYTES}: it was cut "
                "off, or is not CIFAR-10's binary form. Fetch it again."
            )
        records = np.frombuffer(data, np.uint8).reshape(-1, RECORD_BYTES)
        if (largest := int(records[:, 0].max())) > 9:
            raise BadData(f"{path} has a label {largest}; CIFAR-10 has 0 to 9. It may be CIFAR-100, or damaged.")
        parts.append(records)
    everything = np.concatenate(parts)
    return Images(everything[:, 1:].reshape(-1, 3, 32, 32).copy(), everything[:, 0].copy())


def write_cifar(path: Path, pixels: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8]) -> None:
    """Write images in that form, completely or not at all."""
    with replacing(path) as file:
        file.write(records_of(pixels, labels))


def records_of(pixels: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8]) -> bytes:
    """The bytes of such a file.

    >>> len(records_of(np.zeros((2, 3, 32, 32), np.uint8), np.array([3, 9], np.uint8))) == 2 * RECORD_BYTES
    True
    """
    return np.concatenate([labels.reshape(-1, 1), pixels.reshape(len(labels), -1)], axis=1).tobytes()
