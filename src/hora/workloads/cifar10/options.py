"""What can be set of the cifar10 workload. The defaults are the course's: batch 128 and rate 0.08 for each worker, a
warm-up over 20 epochs as Horovod's callback does it, then 0.08, 0.01, 0.002 and 0.0004 times the number of workers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from hora.errors import UsageError
from hora.workloads import optimizers
from hora.workloads import options as base

__all__ = ["Options"]


class Options(base.WorkloadOptions, frozen=True, kw_only=True):
    """
    >>> plan = Options.of({}).plan(50_000, 16)
    >>> [round(plan.lr_at_epoch(epoch), 6) for epoch in (20, 40, 41, 60, 61, 70, 71, 79)]
    [1.28, 1.28, 0.16, 0.16, 0.032, 0.032, 0.0064, 0.0064]
    """

    workload: ClassVar[str] = "cifar10"
    data_wanted: ClassVar[str] = "CIFAR-10's binary files"
    data_ways: ClassVar[tuple[tuple[str, str], ...]] = (
        ("get cifar10", "data/cifar10"), ("make textures --format cifar", ""),
    )  # fmt: skip
    usual_samples: ClassVar[int] = 50_000
    usual_speed: ClassVar[float] = 50.0
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = optimizers.PRESETS

    epochs: base.Epochs = 80.0
    batch: base.Batch = 128
    base_batch: Annotated[int, Meta(gt=0, description="Global batch size that --lr is for.")] = 128
    lr: base.LearningRate = 0.08
    warmup: base.Warmup = "horovod:20"
    decay: base.Decay = "41:0.125,61:0.025,71:0.005"
    network: Annotated[
        Literal["v2", "v1"], Meta(description="ResNet of pre-activation bottlenecks, or of basic blocks.")
    ] = "v2"
    depth: Annotated[int, Meta(gt=0, description="Layers: 9n+2 of version 2, 6n+2 of version 1.")] = 56
    optimizer: Annotated[
        optimizers.OptimizerName, Meta(description="sgd, also called momentum, has --momentum; nesterov is Nesterov's.")
    ] = "sgd"
    momentum: Annotated[float, Meta(ge=0, lt=1, description="Momentum, for sgd, nesterov and lars.")] = 0.9
    l2: Annotated[float, Meta(ge=0, description="L2 penalty on the convolutions' kernels: l2 x sum of squares.")] = 1e-4
    augment: Annotated[
        Literal["yes", "no"], Meta(description="Shift by up to 10 % and flip the training images at random.")
    ] = "yes"

    def check(self) -> None:
        super().check()
        if self.framework == "keras" and self.optimizer != "sgd":
            raise UsageError(
                f"--optimizer {self.optimizer} with --framework keras: only sgd is there. Leave it "
                "out, or train with --framework torch."
            )
        unit = 9 if self.network == "v2" else 6
        if self.depth < unit + 2 or (self.depth - 2) % unit:
            raise UsageError(
                f"--depth {self.depth}: a ResNet {self.network} has {unit}n+2 layers, such as {unit + 2} or 56. Give "
                "one of those."
            )

    @classmethod
    def count_samples(cls, folder: Path) -> int:
        return sum(path.stat().st_size for path in folder.glob("data_batch_*.bin")) // 3073
