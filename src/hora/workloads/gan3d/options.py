"""What can be set of the 3DGAN workload. The defaults are those of upstream's Horovod script; the competition's
are --optimizer adam --epochs 30."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from hora.errors import UsageError
from hora.schedule import LearningRatePlan
from hora.workloads import options as base

__all__ = ["EcalFit", "Options"]

EcalFit = Literal["polynomial", "double"]


class Options(base.WorkloadOptions, frozen=True, kw_only=True):
    """The rate is ``lr`` times the number of workers, whatever the batch, as upstream has it.

    >>> Options.of({}).plan(180_000, 16).peak_lr, Options.of({"batch": 8}).plan(180_000, 16).peak_lr
    (0.016, 0.016)
    >>> Options.of({}).plan(180_000, 16).steps_per_epoch
    87
    """

    workload: ClassVar[str] = "gan3d"
    unused: ClassVar[frozenset[str]] = frozenset()
    not_elastic: ClassVar[str] = "gan3d cannot be elastic yet. Leave --elastic out; --resume auto continues a run."
    usual_metric: ClassVar[str] = "val_loss"
    data_wanted: ClassVar[str] = "Showers in HDF5 files"
    data_ways: ClassVar[tuple[tuple[str, str], ...]] = (("make showers", "data/showers"),)
    usual_samples: ClassVar[int] = 180_000
    usual_speed: ClassVar[float] = 1.0

    epochs: base.Epochs = 25.0
    batch: base.Batch = 128
    lr: base.LearningRate = 0.001
    base_batch: Annotated[
        int, Meta(ge=0, description="Global batch size that --lr is for; 0: the batch of one worker.")
    ] = 0
    log_every: Annotated[int, Meta(gt=0, description="Log every N steps.")] = 1
    optimizer: Annotated[Literal["rmsprop", "adam"], Meta(description="Optimizer.")] = "rmsprop"
    latent: Annotated[int, Meta(gt=0, description="Size of the latent vector.")] = 200

    generation_weight: Annotated[float, Meta(ge=0, description="Weight of the real/fake loss.")] = 8.0
    auxiliary_weight: Annotated[float, Meta(ge=0, description="Weight of the primary-energy loss.")] = 0.2
    ecal_weight: Annotated[float, Meta(ge=0, description="Weight of the deposited-energy loss.")] = 0.1
    flip: Annotated[float, Meta(ge=0, le=1, description="Share of the discriminator's labels to flip.")] = 0.05
    ecal_fit: Annotated[
        EcalFit,
        Meta(description="Energy that a shower deposits: upstream's fit, or twice the primary energy."),
    ] = "polynomial"
    xscale: Annotated[float, Meta(gt=0, description="Factor of all deposited energies.")] = 1.0

    events: Annotated[int, Meta(gt=0, description="Number of events to read.")] = 200_000
    test_events: Annotated[int, Meta(ge=0, description="Number of events for the test losses; 0: all.")] = 0
    analysis: Annotated[
        bool, Meta(description="After each epoch, compare moments and profiles of generated showers with real ones.")
    ] = False
    weights_dir: Annotated[str, Meta(description="Folder of the HDF5 weights.  [default: OUT/weights2D]")] = ""

    def check(self) -> None:
        super().check()
        if self.logical_workers:
            raise UsageError(
                f"--logical-workers {self.logical_workers}: gan3d updates two networks four times a step, which "
                "logical workers cannot do yet. Leave it out, or give --emulate-workers."
            )
        if not any(self.loss_weights):
            raise UsageError("all three loss weights are 0, so there is nothing to learn. Give one of them a weight.")

    def plan(self, samples: int, workers: int) -> LearningRatePlan:
        if not self.base_batch:
            return msgspec.structs.replace(self, base_batch=self.batch).plan(samples, workers)
        return super().plan(samples, workers)

    @property
    def loss_weights(self) -> tuple[float, float, float]:
        """The weights of the generation, auxiliary and ecal losses."""
        return self.generation_weight, self.auxiliary_weight, self.ecal_weight

    @property
    def data_folder(self) -> Path:
        return Path(self.data) if self.data else Path("data") / "showers"

    @property
    def weights_folder(self) -> Path:
        return Path(self.weights_dir) if self.weights_dir else self.out_folder / "weights2D"
