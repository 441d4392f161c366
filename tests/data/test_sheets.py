"""CIFAR-10 in sheets of PNG: one image a row, to the same arrays and bytes as the binary form."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hora.data.cifar import TEST_FILE, TRAIN_FILES, write_cifar
from hora.data.jpeg import encode_png
from hora.data.sheets import SHEETS, sheet_records
from hora.errors import BadData


@pytest.fixture
def sheets(tmp_path: Path) -> Path:
    """Three images a sheet; pixel by pixel as a browser's canvas would draw them."""
    rng = np.random.default_rng(4)
    for split, (labels_name, names) in SHEETS.items():
        labels = rng.integers(0, 10, 3 * len(names)).astype(np.uint8)
        for number, name in enumerate(names):
            pixels = rng.integers(0, 256, (3, 3, 32, 32), np.uint8)
            sheet = np.zeros((3, 1024, 3), np.uint8)
            for image in range(3):
                for place in range(1024):
                    sheet[image, place] = pixels[image, :, place // 32, place % 32]
            (tmp_path / name).write_bytes(encode_png(sheet))
            write_cifar(tmp_path / name.replace(".png", ".bin"), pixels, labels[3 * number : 3 * number + 3])
        (tmp_path / labels_name).write_text(json.dumps(labels.tolist()))
        assert split in ("train", "test")
    return tmp_path


def files_of(sheets: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sheets.iterdir() if path.suffix in (".png", ".json")}


def test_sheets_are_the_binary_files(sheets: Path) -> None:
    records = dict(sheet_records(files_of(sheets)))
    assert records == {Path(name).stem: (sheets / name).read_bytes() for name in (*TRAIN_FILES, TEST_FILE)}


def test_what_is_wrong_is_named(sheets: Path) -> None:
    def refused(said: str) -> None:
        with pytest.raises(BadData, match=said):
            list(sheet_records(files_of(sheets)))

    labels = sheets / "test_lables.json"
    for content, said in (
        ("[1, 2]", "2 labels, but the sheets 3 images"),
        ("[1,", "is not JSON"),
        ("[1, 2, 10]", "0 to 9"),
    ):
        labels.write_text(content)
        refused(rf"test_lables\.json.*{said}")
    labels.unlink()
    refused(r"test_lables\.json is missing beside")
    sheet = sheets / "data_batch_2.png"
    whole = sheet.read_bytes()
    sheet.write_bytes(whole[: len(whole) // 2])
    refused(r"data_batch_2\.png cannot be decoded")
    sheet.write_bytes(encode_png(np.zeros((3, 32, 3), np.uint8)))
    refused(r"data_batch_2\.png is 32 pixels wide, not 1024")
    with pytest.raises(BadData, match=r"train_lables\.json is missing beside test_batch\.png"):
        list(sheet_records({"test_batch.png": whole}))
