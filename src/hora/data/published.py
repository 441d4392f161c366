"""ImageNet as it is published: a tar of class tars to train on, a tar of images to validate with, whose classes are in
another file. Both become Sources, read where they lie: nothing is unpacked first.

Every header is checked, and the end of every archive, so one that was cut off is found before anything is written.
"""

from __future__ import annotations

import csv
import importlib
import io
import mmap
import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from hora.data.folder import EXTENSIONS
from hora.data.source import Sample
from hora.data.tar import Member, members
from hora.errors import BadData, EnvironmentUnfit
from hora.files import replacing

__all__ = ["Labels", "Tars", "read_devkit", "read_labels", "training", "validation"]

_GROUND_TRUTH, _META = "validation_ground_truth.txt", "meta.mat"
_WNID = re.compile(r"n\d{8}")


class _Scan(msgspec.Struct, frozen=True):
    """What is kept of a scan, so that it is done once."""

    files: list[str]
    classes: list[str]
    names: list[str]
    table: bytes  # int64, four a sample: file, offset, bytes, label


class Tars:
    """Images inside tar files; a Source. ``names`` are those that the files have there."""

    def __init__(self, scan: _Scan) -> None:
        self._scan = scan
        self.names, self.classes = scan.names, tuple(scan.classes)
        self._table = np.frombuffer(scan.table, np.int64).reshape(-1, 4)
        self.labels: npt.NDArray[np.int64] = self._table[:, 3]
        self._open: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._table)

    def name(self, index: int) -> str:
        return f"{self.names[index]} in {self._scan.files[int(self._table[index, 0])]}"

    def read(self, index: int) -> Sample:
        number, offset, nbytes, label = self._table[index].tolist()
        if number not in self._open:
            self._open[number] = os.open(self._scan.files[number], os.O_RDONLY | os.O_CLOEXEC)
        data = os.pread(self._open[number], nbytes, offset)
        if len(data) != nbytes:
            raise BadData(f"{self.name(index)} has {len(data)} of its {nbytes} bytes: the archive has changed since.")
        return Sample(data, label)

    def save(self, path: Path) -> None:
        with replacing(path) as file:
            file.write(msgspec.msgpack.encode(self._scan))

    @classmethod
    def load(cls, path: Path) -> Tars:
        try:
            return cls(msgspec.msgpack.decode(path.read_bytes(), type=_Scan))
        except (OSError, msgspec.DecodeError) as error:
            raise BadData(f"{path}, what is known of the archives, cannot be read: {error}. Remove it.") from None


def training(path: Path) -> Tars:
    """The images to train on: of a tar of class tars (``n01440764.tar``), or of a folder of them."""
    files: list[Path] = sorted(path.glob("*.tar")) if path.is_dir() else [path]
    if not files:
        raise BadData(f"{path} is a folder without a tar file of any class. Give the train tar, or what was in it.")
    found: list[tuple[str, int, Member]] = []  # class, file, image
    for number, file in enumerate(files):
        data = _mapped(file)
        inside = list(members(data, file))
        if path.is_dir():
            found += [(file.stem, number, image) for image in _images(inside, str(file))]
            continue
        for tar in inside:
            name = PurePosixPath(tar.name)
            if name.suffix != ".tar":
                raise BadData(
                    f"{file} has {tar.name!r} in it, which is not the tar file of a class. The tar to train on has one "
                    "for each class (n01440764.tar …); give that, or a folder of class tars."
                )
            view = data[tar.offset : tar.offset + tar.nbytes]
            within = _images(members(view, Path(f"{file}, {tar.name}")), f"{file}, {tar.name}")
            moved = (image._replace(offset=image.offset + tar.offset) for image in within)
            found += [(name.stem, number, image) for image in moved]
    classes = sorted({name for name, _, _ in found})
    numbers = {name: label for label, name in enumerate(classes)}
    found.sort(key=lambda each: (each[0], each[2].name))
    return _tars(files, classes, [(number, image, numbers[name]) for name, number, image in found])


class Labels(NamedTuple):
    """What a file of labels says: the class of each image in their order, or by the image's name; and what of it was
    taken for a heading."""

    classes: dict[str, str] | list[str]
    heading: str = ""


def validation(path: Path, labels: Labels, classes: Sequence[str]) -> Tars:
    """The images to validate with, whose classes are given by name, or for all in the order of their names."""
    images = sorted(_images(members(_mapped(path), path), str(path)), key=lambda image: PurePosixPath(image.name).name)
    numbers = {name: label for label, name in enumerate(classes)}
    known = labels.classes
    heading = f" Line 1 of the labels was read as a heading: {labels.heading!r}." if labels.heading else ""
    if isinstance(known, dict):
        missing = [image.name for image in images if PurePosixPath(image.name).stem not in known]
        if missing:
            raise BadData(
                f"{len(missing)} of the {len(images)} images of {path} have no label, the first {missing[0]!r}. Give "
                f"the labels of these images.{heading}"
            )
        given = [known[PurePosixPath(image.name).stem] for image in images]
    else:
        given = known
        if len(given) != len(images):
            raise BadData(
                f"{path} has {len(images)} images, and there are {len(given)} labels. They belong together one by one, "
                f"in the order of the images' names. Give the labels of these images.{heading}"
            )
    if unknown := sorted(set(given) - set(numbers)):
        raise BadData(
            f"the labels have classes that are not among the {len(classes)} to train on, the first "
            f"{unknown[0]!r}, {len(unknown)} in all. Give labels and a train tar of the same data set."
        )
    return _tars([path], classes, [(0, image, numbers[name]) for image, name in zip(images, given, strict=True)])


def read_labels(path: Path) -> Labels:
    """Which class each image is of, as the files that go around say it: a line for each image, with its class alone, or
    with its name before it (``ILSVRC2012_val_00000001.JPEG n01751748``, also with a comma).

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
    ...     _ = file.write("ImageId,PredictionString\\nILSVRC2012_val_00048981,n03995372 85 1 499 272\\n")
    ...     file.flush()
    ...     read_labels(Path(file.name))
    Labels(classes={'ILSVRC2012_val_00048981': 'n03995372'}, heading='ImageId PredictionString')
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadData(
            f"{path} cannot be read as labels: {error}. Give a text file with a line for each image."
        ) from None
    named: dict[str, str] = {}
    plain: list[str] = []
    heading = ""
    for number, row in enumerate(csv.reader(io.StringIO(text)), start=1):
        words = " ".join(row).split()
        if not words:
            continue
        if number == 1 and not any(map(_WNID.fullmatch, words)):
            heading = " ".join(words)[:60]
            continue
        if _WNID.fullmatch(words[0]) and len(words) == 1:
            plain.append(words[0])
        elif len(words) > 1 and _WNID.fullmatch(words[1]):
            named[PurePosixPath(words[0]).stem] = words[1]
        else:
            raise BadData(
                f"{path}, line {number}: {' '.join(words)[:60]!r} names no class. Write a class such as n01440764, or "
                "an image's name and its class, in each line."
            )
    if plain and named:
        raise BadData(f"{path} has lines with and lines without an image's name. Write all of them in one way.")
    if not plain and not named:
        raise BadData(f"{path} has no labels in it. Write a line for each image.")
    return Labels(plain or named, heading)


def read_devkit(path: Path) -> Labels:
    """The classes of the validation images in order, of the development kit (``ILSVRC2012_devkit_t12.tar.gz``): its
    ground truth has numbers, and ``meta.mat`` says which class each number is."""
    parts: dict[str, bytes] = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                for name in (_GROUND_TRUTH, _META):
                    if member.name.endswith(name) and (file := archive.extractfile(member)):
                        parts[name] = file.read()
    except (OSError, tarfile.TarError, EOFError) as error:
        raise BadData(f"{path} cannot be read: {error}. It may be cut off; fetch it again.") from None
    if missing := [name for name in (_GROUND_TRUTH, _META) if name not in parts]:
        raise BadData(f"{path} has no *{missing[0]} in it: this is not the development kit of ILSVRC 2012.")
    try:
        reader: Any = importlib.import_module("scipy.io")
    except ImportError:
        raise EnvironmentUnfit(
            "reading the development kit's meta.mat needs SciPy, which is not installed. Run 'pip install scipy', or "
            "give the classes with --labels."
        ) from None
    try:
        synsets = reader.loadmat(io.BytesIO(parts[_META]), squeeze_me=True)["synsets"]
        names = {int(each["ILSVRC2012_ID"]): str(each["WNID"]) for each in synsets}
        return Labels([names[int(line)] for line in parts[_GROUND_TRUTH].split()])
    except Exception as error:  # SciPy raises whatever it meets
        raise BadData(
            f"{path}: its ground truth and meta.mat do not belong together: {error!r}. Fetch it again."
        ) from None


# ---- inside ----


def _tars(files: Sequence[Path], classes: Sequence[str], found: Sequence[tuple[int, Member, int]]) -> Tars:
    table = np.array([(number, image.offset, image.nbytes, label) for number, image, label in found], np.int64)
    names = [PurePosixPath(image.name).name for _, image, _ in found]
    places = [str(file.absolute()) for file in files]
    return Tars(_Scan(places, list(classes), names, table.reshape(-1, 4).tobytes()))


def _images(found: Iterator[Member] | Sequence[Member], where: str) -> list[Member]:
    images = [
        member for member in found
        if member.name.lower().endswith(EXTENSIONS) and not PurePosixPath(member.name).name.startswith(".")
    ]  # fmt: skip
    if not images:
        raise BadData(
            f"{where} has no image in it ({', '.join(EXTENSIONS)}). A class without images would have a number and "
            "nothing to learn. Fetch it again, or give the right file."
        )
    return images


def _mapped(path: Path) -> memoryview:
    try:
        with open(path, "rb") as file:
            if not os.fstat(file.fileno()).st_size:
                raise BadData(f"{path} is empty. Fetch it again.")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise BadData(f"{path} cannot be read: {error.strerror}. Give the path of the tar file.") from None
