"""Encoded samples by number: the interface that image folders, tar shards and TFRecord shards have in common.

Random access is the point. With it, one ``Sampler`` shuffles the whole set, divides it over any number of workers and
continues in the middle of an epoch, exactly, for every format; a stream with a shuffle buffer can do none of this.

A source holds no file position and no lock, so it may be used from several processes, forked or spawned.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from hora.errors import BadData, UsageError

__all__ = ["SPLITS", "Sample", "Source", "open_source"]

SPLITS = {"train": ("train",), "val": ("val", "validation", "valid", "test")}  # the names that a split goes by


class Sample(NamedTuple):
    """One sample as it is stored: an image file's bytes, and the number of its class, from 0."""

    data: bytes
    label: int


class Source(Protocol):
    """What every format gives."""

    classes: tuple[str, ...]
    """The names of the classes; a label is a position in it."""
    labels: npt.NDArray[np.int64]
    """The label of every sample, known without reading one."""

    def __len__(self) -> int:
        """How many samples there are."""
        ...

    def read(self, index: int) -> Sample:
        """The sample of this number; raises BadData, which names it, if it cannot be had."""
        ...

    def name(self, index: int) -> str:
        """Where this sample lies, for messages."""
        ...


def open_source(path: Path, split: str | None = None, *, first_label: int | None = None) -> Source:
    """Find out what lies at ``path``, and open it.

    ``path`` is a folder of class folders, a folder of shards, one shard, or a pattern of shards such as
    ``train/shard-{000000..000009}.tar``; a pattern that matches one folder means that folder. With ``split`` ("train"
    or "val") it has both: as folders of these names, or as shards that begin with them (``train-00000-of-01024``); of
    the shards of a pattern, too, only those of the split are taken. ``first_label`` is the number that the shards give
    the first class: 0 in tar shards and 1 in TFRecord shards, unless given.

    >>> import tempfile
    >>> from hora.data.folder import write_folder
    >>> with tempfile.TemporaryDirectory() as place:
    ...     _ = write_folder(Path(place) / "train", [Sample(b"...", 1), Sample(b"...", 0)], classes=("cat", "dog"))
    ...     source = open_source(Path(place), "train")
    ...     source.classes, len(source), source.read(0)
    (('cat', 'dog'), 2, Sample(data=b'...', label=0))
    """
    from hora.data.folder import Folder
    from hora.data.shards import expand, has_pattern, one_folder
    from hora.data.tar import TarShards
    from hora.data.tfrecord import TFRecordShards

    names, path = _names(split), one_folder(path)
    place = next((path / name for name in names if (path / name).is_dir()), path)
    beginnings = names if place == path else ()  # in a folder of its own a shard may be called anything
    if place.is_dir():
        entries = _entries(place)
        mine = [file for file in entries if file.is_file() and (not beginnings or file.name.startswith(beginnings))]
        folders = not beginnings and any(entry.is_dir() for entry in entries)
    elif has_pattern(path) or path.is_file():
        mine, folders = _of_split(expand(path), path, split), False
    else:
        raise BadData(f"{path} does not exist. Check --data, or make a data set with 'hora data make textures'.")
    tars = [file for file in mine if TarShards.takes(file)]
    records = [file for file in mine if TFRecordShards.takes(file)]
    match bool(folders), bool(tars), bool(records):
        case True, False, False:
            if first_label is not None:
                raise UsageError(f"{place} is an image folder, whose labels have no first number. Leave it out.")
            return Folder(place)
        case False, True, False:
            return TarShards(tars, first_label=first_label or 0)
        case False, False, True:
            return TFRecordShards(records, first_label=1 if first_label is None else first_label)
        case False, False, False:
            wanted = f" that begin with {' or '.join(beginnings)}" if beginnings else ""
            besides = f", nor a folder {' or '.join(names)}" if names else ""
            raise BadData(
                f"{place} has no samples: there are no folders of images, no tar shards (*.tar) and no TFRecord shards "
                f"(*-of-*, *.tfrecord){wanted}{besides}. Check --data, or make some with 'hora data make textures'."
            )
    found = [f"{len(tars)} tar shards"] * bool(tars) + [f"{len(records)} TFRecord shards"] * bool(records)
    found += ["class folders"] * bool(folders)
    raise BadData(f"{place} has {' and '.join(found)}; which of them is meant? Keep each in a folder of its own.")


def _of_split(files: list[Path], path: Path, split: str | None) -> list[Path]:
    """Those of a split: by their folder, if it has the name of one, or else by how their own names begin. What is
    trained on must not be what is validated with."""
    if split is None or not files:
        return files
    names, every = SPLITS[split], {name for known in SPLITS.values() for name in known}
    mine = [
        file
        for file in files
        if (file.parent.name in names if file.parent.name in every else file.name.startswith(names))
    ]
    if not mine:
        raise BadData(
            f"{path} matches no shards to {'train on' if split == 'train' else 'validate with'}: none begins with "
            f"{' or '.join(names)}, or lies in a folder of that name. Give the folder, or a pattern that matches both."
        )
    return mine


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise BadData(f"{folder} cannot be read: {error.strerror}. Check --data and its rights.") from None


def _names(split: str | None) -> tuple[str, ...]:
    if split is not None and split not in SPLITS:
        raise UsageError(f"split={split!r} is not known. Use {' or '.join(map(repr, SPLITS))}.")
    return SPLITS[split] if split else ()
