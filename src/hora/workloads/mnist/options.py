"""What can be set of the mnist workload. The defaults are tensorflow/models' official MNIST; its batch and rate are of
one worker, and the rate grows with the number of them, as Horovod's README says."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from hora.workloads import options as base

__all__ = ["Options"]


class Options(base.WorkloadOptions, frozen=True, kw_only=True):
    """
    >>> Options.of({}).lr, Options.of({"network": "horovod"}).lr, Options.of({"optimizer": "sgd"}).momentum
    (0.0001, 0.01, 0.9)
    """

    workload: ClassVar[str] = "mnist"
    data_wanted: ClassVar[str] = "MNIST's four files"
    data_ways: ClassVar[tuple[tuple[str, str], ...]] = (("get mnist", "data/mnist"), ("make digits", "data/mnist"))
    usual_speed: ClassVar[float] = 500.0
    other_speeds: ClassVar[Mapping[str, float]] = {"network=horovod": 3500.0}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "optimizer=sgd": {"lr": 0.001},
        "network=horovod": {
            "batch": 64, "base_batch": 64, "epochs": 10.0, "optimizer": "sgd", "lr": 0.01, "momentum": 0.5,
            "log_every": 10,
        },
    }  # fmt: skip

    epochs: base.Epochs = 40.0
    batch: base.Batch = 100
    base_batch: Annotated[int, Meta(gt=0, description="Global batch size that --lr is for.")] = 100
    lr: base.LearningRate = 1e-4
    network: Annotated[
        Literal["tensorflow", "horovod"], Meta(description="TensorFlow's official CNN, or Horovod's small one.")
    ] = "tensorflow"
    optimizer: Annotated[Literal["adam", "sgd"], Meta(description="Optimizer.")] = "adam"
    momentum: Annotated[float, Meta(ge=0, lt=1, description="Momentum, for --optimizer sgd.")] = 0.9

    @property
    def data_folder(self) -> Path:
        """What 'hora data get mnist' has fetched; if that is not there, what 'hora data make digits' has made."""
        if not self.data and not super().data_folder.exists() and Path("data/digits").is_dir():
            return Path("data/digits")
        return super().data_folder

    @classmethod
    def count_samples(cls, folder: Path) -> int:
        path = next(iter(sorted(folder.glob("train-images*"))), None)
        if path is None:
            return 0
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return int.from_bytes(file.read(8)[4:], "big")
