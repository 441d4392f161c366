"""A run on pictures with Keras, in two workers. See ``ranks``."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from tests.workloads.keras.ranks import main, on

import hora.keras as hvd
from hora.data.loader import BatchPlan
from hora.data.source import open_source
from hora.workloads.imagenet.data import ValidationBatches
from hora.workloads.imagenet.keras_train import prepared, train
from hora.workloads.imagenet.options import Options

SMALL: dict[str, Any] = {
    "framework": "keras", "arch": "resnet18", "batch": 8, "image_size": 32, "resize": 36, "loaders": 1, "lr": 0.02,
    "base_batch": 16, "decay": "none", "log_every": 2, "epochs": 1, "label_smoothing": 0.1, "zero_gamma": True,
}  # fmt: skip


def trained(data: Path, out: Path, **more: Any) -> dict[str, Any]:
    """The final metrics of a run of its own."""
    hvd.shutdown()  # as if it were another process
    options: Any = Options.of({**SMALL, "data": str(data), "out": str(out), **more})
    return train(options)


@on(2)
def what_it_tells_is_what_its_checkpoint_is_worth(data: Path, folder: Path) -> None:
    """Four steps; then Keras loads the file, and finds over all pictures what both workers found over their shares."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        result = trained(data, folder / "out")
    assert (result["steps"], result["samples"], result["peak_lr"]) == (4, 64, 0.02)
    assert result["framework"] == "keras" and result["arch"] == "resnet18" and result["generated_data"]
    assert result["study_images_per_s"] > 0 and result["images_per_s"] > 0
    assert result["val_top5"] == 1.0  # of four classes
    if hvd.rank():
        assert said.getvalue() == ""
        return
    *_, second, first = said.getvalue().splitlines()[:-3]  # before those of the end
    assert second == f"Test loss: {result['val_loss']}" and first == f"Test accuracy: {result['val_accuracy']}"
    lines = [json.loads(line) for line in (folder / "out" / "metrics.jsonl").read_text().splitlines()]
    assert all({"loss", "cross_entropy", "accuracy", "top5", "lr"} <= set(line) for line in lines[:-1])
    assert lines[-1]["val_cross_entropy"] == result["val_cross_entropy"] and len(lines) == 5

    assert result["checkpoint"] == str(folder / "out" / "checkpoint-1.h5")
    model: Any = keras.models.load_model(result["checkpoint"])
    pictures = open_source(data, "val")
    batch = ValidationBatches(pictures, 32, 36)[BatchPlan(np.arange(len(pictures)))]
    found = model.evaluate(*prepared(batch, 4), batch_size=len(pictures), verbose=0, return_dict=True)
    for name, value in found.items():
        assert result[f"val_{name}"] == pytest.approx(value, rel=1e-3), name
    assert result["val_loss"] > result["val_cross_entropy"]  # what decays is in it


if __name__ == "__main__":
    main()
