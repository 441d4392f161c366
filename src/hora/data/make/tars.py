"""Generated images in the archives that ImageNet is published in, so that preparing it can be tried without it:
``ILSVRC2012_img_train.tar`` with a tar for each class, ``ILSVRC2012_img_val.tar``, the development kit with the
classes of the latter (if SciPy is there to write it), and the same as a text file, ``validation_labels.txt``."""

from __future__ import annotations

import gzip
import importlib
import io
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from hora.data.make.generate import part_rng
from hora.data.tar import add_member

__all__ = ["DEVKIT", "LABELS", "TRAIN", "VAL", "pack"]

TRAIN, VAL = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
DEVKIT, LABELS = "ILSVRC2012_devkit_t12.tar.gz", "validation_labels.txt"
_KIT = "ILSVRC2012_devkit_t12/data"


def pack(folder: Path, classes: Sequence[str], seed: int) -> None:
    """Put the class folders in ``folder`` (train/CLASS, val/CLASS) into archives beside them."""
    with tarfile.open(folder / TRAIN, "w", format=tarfile.USTAR_FORMAT) as outer:
        for name in classes:
            inner = io.BytesIO()
            with tarfile.open(fileobj=inner, mode="w", format=tarfile.USTAR_FORMAT) as archive:
                for path in sorted((folder / "train" / name).iterdir()):
                    add_member(archive, path.name, path.read_bytes())
            add_member(outer, f"{name}.tar", inner.getvalue())
    images = sorted((path.name, label, path) for label, name in enumerate(classes)
                    for path in (folder / "val" / name).iterdir())  # fmt: skip
    images = [images[place] for place in part_rng(seed, 3).permutation(len(images))]  # classes in no order, as there
    with tarfile.open(folder / VAL, "w", format=tarfile.USTAR_FORMAT) as archive:
        for number, (_, _, path) in enumerate(images, start=1):
            add_member(archive, f"ILSVRC2012_val_{number:08d}.JPEG", path.read_bytes())
    (folder / LABELS).write_text("".join(f"{classes[label]}\n" for _, label, _ in images))
    _write_devkit(folder / DEVKIT, classes, [label for _, label, _ in images], seed)


def _write_devkit(path: Path, classes: Sequence[str], labels: Sequence[int], seed: int) -> None:
    """Its numbers count from 1, and are not in the order of the classes' names."""
    try:
        writer: Any = importlib.import_module("scipy.io")
    except ImportError:
        return
    numbers = 1 + part_rng(seed, 4).permutation(len(classes))
    kinds = [("ILSVRC2012_ID", object), ("WNID", object), ("words", object), ("num_children", object)]
    synsets = np.empty((len(classes), 1), dtype=kinds)
    for place, label in enumerate(np.argsort(numbers).tolist()):
        synsets[place, 0] = (int(numbers[label]), classes[label], f"texture {label}", 0)
    meta = io.BytesIO()
    writer.savemat(meta, {"synsets": synsets})
    truth = "".join(f"{numbers[label]}\n" for label in labels).encode()
    with open(path, "wb") as file, _gzipped(file) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        add_member(archive, f"{_KIT}/ILSVRC2012_validation_ground_truth.txt", truth)
        add_member(archive, f"{_KIT}/meta.mat", meta.getvalue())


def _gzipped(file: BinaryIO) -> gzip.GzipFile:
    return gzip.GzipFile(fileobj=file, mode="wb", mtime=0)  # the same bytes each time
