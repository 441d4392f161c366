"""What can be set of the mnist workload. The defaults are tensorflow/models' official MNIST; its batch and rate are of
one worker, and the rate grows with the number of them, as Horovod's README says."""

from __future__ import annotations

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
