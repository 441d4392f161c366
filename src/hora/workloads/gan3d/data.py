"""Showers for 3DGAN: files in the EleEscan layout, the first nine of ten for training, read event by event, so that
nothing has to fit in memory; and prepared as upstream does."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hora.data.generated import is_generated
from hora.data.loader import BatchPlan
from hora.data.showers import ShowerFiles, find_shower_files, split_files
from hora.workloads.missing import check_folder

__all__ = ["Data", "ShowerBatch", "ShowerDataset", "load"]

THRESHOLD = 1e-6  # a cell with less has nothing
GEV = 100.0  # the networks' unit of primary energy is that many GeV


class ShowerBatch(NamedTuple):
    """``showers`` is (events, 1, 25, 25, 25); ``energy``, in 100 GeV, and ``ecal``, the sum of cells, are (events,)."""

    showers: Tensor
    energy: Tensor
    ecal: Tensor


class ShowerDataset:
    """The events of some files, as batches; may go to loader processes.

    >>> import tempfile
    >>> from hora.data.showers import write_showers
    >>> with tempfile.TemporaryDirectory() as place:
    ...     file = Path(place) / "EleEscan_1_1.h5"
    ...     write_showers(file, np.full((2, 25, 25, 25), 1e-3, np.float32), np.array([50, 400], np.float32))
    ...     ShowerDataset([file]).batch(np.array([1])).energy
    tensor([4.])
    """

    def __init__(self, files: list[Path], xscale: float = 1.0) -> None:
        self.files, self._xscale = files, xscale
        self._events = ShowerFiles(files)

    def __len__(self) -> int:
        return len(self._events)

    @property
    def energy_gev(self) -> npt.NDArray[np.float32]:
        """The primary energy of every event."""
        return self._events.energy

    def __getitem__(self, plan: BatchPlan) -> ShowerBatch:
        return self.batch(plan.indices)

    def batch(self, indices: npt.NDArray[np.int64]) -> ShowerBatch:
        """These events. What upstream prepares: small cells set to nothing, energies scaled."""
        ecal, energy = self._events.read(indices)
        showers = torch.from_numpy(ecal)
        showers[showers < THRESHOLD] = 0
        showers *= self._xscale
        return ShowerBatch(showers[:, None], torch.from_numpy(energy / GEV), showers.sum((1, 2, 3)))


class Data(NamedTuple):
    train: ShowerDataset
    test: ShowerDataset
    generated: bool


def load(folder: Path, events: int, xscale: float = 1.0) -> Data:
    """Find, check and divide the files: in order of their names, until they have that many events."""
    check_folder("gan3d", folder)
    files, counted = [], 0
    for file in find_shower_files(folder):
        if counted >= events:
            break
        files.append(file)
        counted += len(ShowerFiles([file]))
    train, test = split_files(files)
    return Data(
        ShowerDataset(train, xscale),
        ShowerDataset(test, xscale),
        is_generated(folder if folder.is_dir() else files[0].parent),
    )
