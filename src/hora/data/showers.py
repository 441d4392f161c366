"""Calorimeter showers in HDF5, as the EleEscan files of 3DGAN have them.

A file has ``ECAL``, float (events, 25, 25, 25), the energy in each cell, and ``target``, (events, 2 or more), whose
column 1 is the primary particle's energy in GeV. Events are numbered through all files in order. A batch reads only
what it needs, and no file is used across a fork.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, starmap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hora.data.need import need
from hora.errors import BadData, UsageError
from hora.files import replacing_path

__all__ = [
    "CELLS",
    "EVENTS_PER_FILE",
    "ShowerArrays",
    "ShowerFiles",
    "find_shower_files",
    "split_files",
    "write_showers",
]

CELLS = (25, 25, 25)
EVENTS_PER_FILE = 10_000
_HCAL = (5, 5, 60)  # the hadronic calorimeter, which the files have and 3DGAN does not use
_ELECTRON = 11  # as the particle data group numbers it

_Floats = npt.NDArray[np.float32]


class ShowerArrays(NamedTuple):
    """``ecal`` is (events, 25, 25, 25), the energy of each cell; ``energy`` (events,), in GeV. Both float32, as stored:
    neither cut off at a threshold nor scaled."""

    ecal: _Floats
    energy: _Floats


def find_shower_files(folder: Path) -> list[Path]:
    """The HDF5 files of a folder, sorted by name: ``EleEscan_*.h5``, or without these any ``*.h5``; or those of a
    pattern, such as ``data/Ele*.h5``.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     _ = [(Path(place) / f"EleEscan_1_{n}.h5").touch() for n in (2, 1)]
    ...     [path.name for path in find_shower_files(Path(place))]
    ...     [path.name for path in find_shower_files(Path(place) / "Ele*2.h5")]
    ['EleEscan_1_1.h5', 'EleEscan_1_2.h5']
    ['EleEscan_1_2.h5']
    """
    if _is_pattern(folder):
        found = sorted(Path(name) for name in glob.glob(str(folder)))
        if not found:
            raise BadData(f"no file is called {folder}. Check --data, and that its pattern is in quotes.")
        return found
    found = sorted(folder.glob("EleEscan_*.h5")) or sorted(folder.glob("*.h5"))
    found = [path for path in found if not path.name.startswith(".")]
    if not found:
        what = "has no file EleEscan_*.h5, nor any other *.h5" if folder.is_dir() else "is not a folder"
        raise BadData(f"{folder} {what}. Check --data, or make showers with 'hora data make showers'.")
    return found


def _is_pattern(path: Path) -> bool:
    return not path.exists() and glob.has_magic(str(path))


def split_files(files: Sequence[Path], train: float = 0.9) -> tuple[list[Path], list[Path]]:
    """Sorted, the first ninety per cent by rounding for training and the others for testing; at least one each.

    >>> files = [Path(f"EleEscan_{n:02}.h5") for n in range(20)]
    >>> [len(part) for part in split_files(files)]
    [18, 2]
    """
    if len(files) < 2:
        raise BadData(
            f"{len(files)} files cannot be divided into some for training and some for testing. Get or "
            "make at least two."
        )
    ordered = sorted(files)
    border = min(max(round(len(ordered) * train), 1), len(ordered) - 1)
    return ordered[:border], ordered[border:]


class ShowerFiles:
    """The events of several files, by number; opens the files where it is used, so it may go to loader processes.

    The shape of every file and all primary energies (``energy``) are read and checked at once, an event's cells when it
    is read.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     path = Path(place) / "EleEscan_1_1.h5"
    ...     write_showers(path, np.ones((3, 25, 25, 25), np.float32), np.array([10, 250, 500], np.float32))
    ...     files = ShowerFiles([path])
    ...     len(files), files.read([2, 0]).energy
    (3, array([500.,  10.], dtype=float32))
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self.files = list(files)
        if not self.files:
            raise BadData("there are no files of showers to read. Check --data.")
        self._open: dict[Path, Any] = {}
        self._process = os.getpid()
        energies = [self._check(path) for path in self.files]
        self.energy = np.concatenate(energies)
        self._starts = np.cumsum([0, *map(len, energies)])

    def __len__(self) -> int:
        return len(self.energy)

    def name(self, index: int) -> str:
        """Where this event lies, for messages."""
        file = self._file_of(index)
        return f"{self.files[file]}, event {index - int(self._starts[file])}"

    def read(self, indices: Sequence[int] | npt.NDArray[np.int64], out: _Floats | None = None) -> ShowerArrays:
        """These events, in this order; ``out`` is an array for their cells. Of a stored chunk, all are read at once."""
        wanted = np.asarray(indices, np.int64)
        if len(wanted) and (wanted.min() < 0 or wanted.max() >= len(self)):
            raise IndexError(f"events {wanted.min()} to {wanted.max()} of {len(self)}")
        ecal = np.empty((len(wanted), *CELLS), np.float32) if out is None else out
        order = np.argsort(wanted, kind="stable")
        ordered = wanted[order]
        borders = np.searchsorted(ordered, self._starts)
        for path, first, begin, end in zip(self.files, self._starts, borders, borders[1:], strict=False):
            if begin < end:
                self._read_file(path, ordered[begin:end] - first, order[begin:end], ecal)
        finite = np.isfinite(ecal.sum(axis=(1, 2, 3)))
        if not finite.all():
            raise BadData(
                f"{self.name(int(wanted[~finite][0]))} has a cell that is inf or nan. Training on it would spoil every "
                "weight; fetch or make the file again."
            )
        return ShowerArrays(ecal, self.energy[wanted])

    def _file_of(self, index: int) -> int:
        return int(np.searchsorted(self._starts, index, side="right")) - 1

    def _read_file(
        self, path: Path, events: npt.NDArray[np.int64], places: npt.NDArray[np.int64], ecal: _Floats
    ) -> None:
        try:
            stored = self._file(path)["ECAL"]
            for span in _spans(events, stored.chunks[0] if stored.chunks else 1):
                first = int(events[span.start])
                block = stored[first : int(events[span.stop - 1]) + 1]
                ecal[places[span]] = block[events[span] - first]
        except OSError as error:
            raise BadData(f"{path} cannot be read: {error}. It is damaged; fetch or make it again.") from None

    def _check(self, path: Path) -> _Floats:
        """Whether a file has what it should; returns its energies."""
        h5py = _h5py()
        try:
            with h5py.File(path, "r", locking=False) as file:
                shapes: dict[str, Any] = {key: getattr(file.get(key), "shape", None) for key in ("ECAL", "target")}
                for name, shape in shapes.items():
                    if shape is None:
                        raise BadData(
                            f"{path} has no dataset {name!r}, only {', '.join(file) or 'nothing'}. It is "
                            "not a file of showers as EleEscan's are."
                        )
                    if file[name].dtype.kind not in "fiu":
                        raise BadData(f"{path} has {name!r} of type {file[name].dtype}, which is not a number.")
                ecal, target = shapes["ECAL"], shapes["target"]
                if ecal[1:] != CELLS or len(target) != 2 or target[1] < 2 or target[0] != ecal[0] or not ecal[0]:
                    raise BadData(
                        f"{path} has ECAL of shape {ecal} and target of shape {target}; they should be (events, 25, "
                        "25, 25) and (events, 2 or more), with as many events, and some."
                    )
                energy = file["target"][:, 1].astype(np.float32)
        except OSError as error:
            raise BadData(f"{path} cannot be read as HDF5: {error}. Fetch or make it again.") from None
        wrong = np.flatnonzero(~(np.isfinite(energy) & (energy > 0)))
        if len(wrong):
            raise BadData(
                f"{path}, event {wrong[0]} has a primary energy of {energy[wrong[0]]} GeV (target, column 1), which no "
                "particle has. Fetch or make the file again."
            )
        return np.asarray(energy, np.float32)

    def _file(self, path: Path) -> Any:
        if self._process != os.getpid():  # forked: what the parent opened is the parent's
            self._open, self._process = {}, os.getpid()
        if path not in self._open:
            self._open[path] = _h5py().File(path, "r", locking=False)
        return self._open[path]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}}


def write_showers(path: Path, ecal: _Floats, energy: _Floats, hcal: _Floats | None = None) -> None:
    """Write one file, completely or not at all; without ``hcal``, that calorimeter has seen nothing.

    An event is a chunk of its own, because training takes them in random order.
    """
    events = len(energy)
    if ecal.shape != (events, *CELLS) or (hcal is not None and hcal.shape != (events, *_HCAL)):
        raise UsageError(
            f"{events} energies do not go with cells of shape {ecal.shape}: (events, 25, 25, 25) is wanted."
        )
    with replacing_path(path) as place, _h5py().File(place, "w") as file:
        packed: dict[str, Any] = {"dtype": "f4", "compression": "gzip", "compression_opts": 1, "shuffle": True}
        file.create_dataset("ECAL", (events, *CELLS), chunks=(1, *CELLS), data=ecal, **packed)
        file.create_dataset("HCAL", (events, *_HCAL), chunks=(1, *_HCAL), data=hcal, **packed)  # None takes no room
        file["target"] = np.stack([np.full(events, _ELECTRON), energy], axis=1).astype(np.float32)


def _spans(events: npt.NDArray[np.int64], chunk: int) -> Iterator[slice]:
    """Sorted events, grouped into those that one read should fetch: of one chunk, or next to each other."""
    apart = (events[1:] // chunk != events[:-1] // chunk) & (events[1:] > events[:-1] + 1)
    borders = [0, *(np.flatnonzero(apart) + 1).tolist(), len(events)]
    return starmap(slice, pairwise(borders))


def _h5py() -> Any:
    return need("h5py", "for files of showers")
