"""More of what runs on pictures and showers do, for when there is time. See ``ranks``."""

from __future__ import annotations

import contextlib
import io
import json
import warnings
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest
import torch
from tests.workloads.keras.bodies_gan3d import train_on_showers
from tests.workloads.keras.bodies_imagenet import SMALL, trained
from tests.workloads.keras.ranks import BODIES, main, on

import hora.keras as hvd
from hora.data.source import open_source
from hora.errors import UsageError
from hora.workloads.imagenet.model import resnet
from hora.workloads.imagenet.options import Options
from hora.workloads.order import SampleOrder
from hora.workloads.start import train_here

for bodies in BODIES.values():
    bodies.clear()  # only those of this file


def arrays_in(path: Path) -> dict[str, Any]:
    """All arrays of a file, by their places; layers are numbered on in a process, so without their numbers."""
    found: dict[str, Any] = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    return found


def assert_same_files(one: Path, other: Path) -> None:
    ones, others = arrays_in(one), arrays_in(other)
    assert len(ones) == len(others) > 0
    assert [name for (name, a), b in zip(ones.items(), others.values(), strict=True) if not np.array_equal(a, b)] == []


@on(2)
def an_interrupted_run_on_pictures_ends_with_the_same_bits(data: Path, folder: Path) -> None:
    trained(data / "pictures", folder / "whole")
    trained(data / "pictures", folder / "broken", max_steps=2)
    trained(data / "pictures", folder / "broken", resume="auto", loaders=0)
    if hvd.rank() == 0:
        assert_same_files(folder / "whole" / "checkpoint-1.h5", folder / "broken" / "checkpoint-1.h5")


@on(2)
def an_interrupted_run_on_showers_ends_with_the_same_bits(data: Path, folder: Path) -> None:
    train_on_showers(data / "showers", folder / "whole", epochs=2)
    train_on_showers(data / "showers", folder / "broken", epochs=2, max_steps=3)
    train_on_showers(data / "showers", folder / "broken", epochs=2, resume="auto", loaders=1)
    if hvd.rank() == 0:
        assert_same_files(folder / "whole" / "checkpoint-2.h5", folder / "broken" / "checkpoint-2.h5")
        whole, broken = (json.loads((folder / name / "history.json").read_text()) for name in ("whole", "broken"))
        assert whole["test"] == broken["test"]


@on(1)
def weights_of_both_frameworks_are_validated(data: Path, folder: Path) -> None:
    torch.manual_seed(1)
    torch.save({"state_dict": resnet("resnet18", 4).state_dict()}, folder / "torch.pth")
    given = {"evaluate": True, "loaders": 0}
    first = trained(data / "pictures", folder / "first", weights=str(folder / "torch.pth"), **given)
    made = trained(data / "pictures", folder / "short", weights=str(folder / "torch.pth"), max_steps=1, lr=1e-12)
    second = trained(data / "pictures", folder / "second", weights=made["checkpoint"], **given)
    assert first["steps"] == second["steps"] == 0 and first["val_loss"] > 0
    assert made["steps"] == 1 and second["val_accuracy"] == made["val_accuracy"]
    with pytest.raises(UsageError, match=r"--weights .*torch.pth does not fit: .*only one of both has layer"):
        trained(data / "pictures", folder / "third", weights=str(folder / "torch.pth"), arch="resnet34", **given)


@on(1)
def a_damaged_picture_ends_the_run_with_its_name(data: Path, folder: Path) -> None:
    for file in (data / "pictures").rglob("*.JPEG"):
        copy = folder / "pictures" / file.relative_to(data / "pictures")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    options: Any = Options.of({**SMALL, "data": str(folder / "pictures"), "out": str(folder / "out")})
    late = (
        SampleOrder(64, 1, options).plans(range(1), 0)[5].indices[0]
    )  # Keras looks at the first batches before it begins
    damaged = Path(open_source(folder / "pictures", "train").name(int(late)))
    damaged.write_bytes(damaged.read_bytes()[:300])
    hvd.shutdown()
    with contextlib.redirect_stderr(io.StringIO()) as said, warnings.catch_warnings(action="ignore"):
        assert train_here(options) == 2
    assert str(damaged) in said.getvalue() and "\nhora: " in f"\n{said.getvalue()}"


@on(1)
def lamb_and_bfloat16_and_accumulation(data: Path, folder: Path) -> None:
    more = {"optimizer": "lamb", "precision": "bf16", "accumulate": 2, "decay_weights_only": True, "loaders": 0}
    result = trained(data / "pictures", folder / "out", **more)
    assert result["steps"] == 4 and np.isfinite(result["val_loss"]) and result["precision"] == "bf16"
    keras.config.set_dtype_policy("float32")


if __name__ == "__main__":
    main()
