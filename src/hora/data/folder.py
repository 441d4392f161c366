"""Image folders, as ImageFolder of torchvision reads them: one folder a class, numbered in alphabetical order.

Files count whose names end in .jpg, .jpeg or .png in any case, also in folders below; hidden ones do not. A class
without an image is an error: leaving it out would renumber those after it, and differently in training and validation.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from hora.data.source import Sample
from hora.errors import BadData
from hora.files import replacing

__all__ = ["EXTENSIONS", "Folder", "write_folder"]

EXTENSIONS = (".jpg", ".jpeg", ".png")


class Folder:
    """The images below a folder of class folders; a Source.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     write_folder(Path(place), [Sample(b"one", 1), Sample(b"two", 0)], classes=("cat", "dog"))
    ...     Folder(Path(place)).read(1), Folder(Path(place)).labels
    2
    (Sample(data=b'one', label=1), array([0, 1]))
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        try:
            self.classes = tuple(sorted(entry.name for entry in os.scandir(root) if _is_class(entry)))
            found = [[os.fsencode(name) for name in _images(root / label)] for label in self.classes]
        except OSError as error:
            raise BadData(f"{error.filename or root} cannot be read: {error.strerror}. Check --data.") from None
        if not self.classes:
            raise BadData(f"{root} has no class folders. An image folder has one folder for each class; check --data.")
        if empty := [name for name, names in zip(self.classes, found, strict=True) if not names]:
            raise BadData(
                f"{root} has class folders without an image ({', '.join(EXTENSIONS)}): {len(empty)} of "
                f"{len(self.classes)}, the first {empty[0]!r}. Left out, they would renumber the classes; fill "
                "or remove them."
            )
        self.labels = np.repeat(np.arange(len(found)), [len(names) for names in found])
        # One string and offsets instead of a million strings: forked loaders share it, as nothing counts references.
        flat = [name for names in found for name in names]
        self._names = b"".join(flat)
        self._ends = np.cumsum([len(name) for name in flat])

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, index: int) -> Path:
        """The file of this sample."""
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        start, end = int(self._ends[index - 1]) if index else 0, int(self._ends[index])
        return Path(self.root, self.classes[self.labels[index]], os.fsdecode(self._names[start:end]))

    def name(self, index: int) -> str:
        return str(self.path(index))

    def read(self, index: int) -> Sample:
        path = self.path(index)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise BadData(f"{path} cannot be read: {error.strerror}. It existed when the folder was listed.") from None
        if not data:
            raise BadData(f"{path} is empty. It was cut off when it was copied; copy or fetch it again.")
        return Sample(data, int(self.labels[index]))


def write_folder(root: Path, samples: Iterable[Sample], classes: Sequence[str], extension: str = ".JPEG") -> int:
    """Write samples as an image folder, numbered as they come, each complete or absent; returns how many.

    ``classes`` must be in alphabetical order, because that is how they are numbered when the folder is read.
    """
    if list(classes) != sorted(classes):
        raise BadData("the classes of an image folder are numbered in alphabetical order; these are in another.")
    for name in classes:
        (root / name).mkdir(parents=True, exist_ok=True)
    count = 0
    for count, sample in enumerate(samples, 1):
        name = classes[sample.label]
        with replacing(root / name / f"{name}_{count:07d}{extension}", durable=False) as file:
            file.write(sample.data)
    return count


def _is_class(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir() and not entry.name.startswith(".")


def _images(folder: Path) -> Iterator[str]:
    """The images below a folder, relative to it, sorted folder by folder."""
    for place, folders, files in os.walk(folder, followlinks=True, onerror=_raise):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if name.lower().endswith(EXTENSIONS) and not name.startswith("."):
                yield os.path.relpath(os.path.join(place, name), folder)


def _raise(error: OSError) -> None:
    raise error
