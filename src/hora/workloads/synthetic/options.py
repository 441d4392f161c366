"""What can be set of the synthetic workload. The defaults are those of Horovod's benchmark and of tf_cnn_benchmarks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from hora.errors import UsageError
from hora.workloads import options as base

__all__ = ["Form", "ModelName", "Options"]

Form = Literal["horovod", "tf"]
ModelName = Literal[
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet56v1",
    "resnet56v2",
    "mnist",
    "mnist_horovod",
    "gan3d_generator",
    "gan3d_discriminator",
]


class Options(base.WorkloadOptions, frozen=True, kw_only=True):
    """
    >>> Options.of({}).batch, Options.of({"form": "tf"}).batch, Options.of({"form": "tf"}).weight_decay
    (32, 64, 4e-05)
    """

    workload: ClassVar[str] = "synthetic"
    unused: ClassVar[frozenset[str]] = frozenset(
        {
            "accumulate", "data", "decay", "emulate_workers", "epochs", "keep", "last", "loaders", "log_every",
            "logical_workers", "max_minutes", "resume", "save", "save_every", "schedule_epochs", "tensorboard",
            "val_batch", "validate",
        }
    )  # fmt: skip
    not_elastic: ClassVar[str] = (
        "synthetic measures a fixed number of workers. Leave --elastic out, or use another workload."
    )
    usual_metric: ClassVar[str] = "images_per_s"
    usual_speed: ClassVar[float] = 3.0
    other_speeds: ClassVar[Mapping[str, float]] = {
        "model=mnist_horovod": 3500.0, "model=mnist": 500.0, "model=resnet56v1": 60.0, "model=resnet56v2": 50.0,
    }  # fmt: skip
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "form=tf": {"batch": 64, "weight_decay": 4e-5},
    }

    lr: base.LearningRate = 0.01
    base_batch: Annotated[int, Meta(gt=0, description="Global batch size that --lr is for.")] = 32
    form: Annotated[
        Form, Meta(description="Report in the format of Horovod's synthetic benchmark or of tf_cnn_benchmarks.")
    ] = "horovod"
    model: Annotated[ModelName, Meta(description="Model.")] = "resnet50"
    image_size: Annotated[int, Meta(ge=0, description="Height and width of images; 0: the model's own.")] = 0
    warmup_batches: Annotated[int, Meta(gt=0, description="Warm-up batches before measuring.")] = 10
    batches_per_iter: Annotated[int, Meta(gt=0, description="For --form horovod: batches per measurement.")] = 10
    iters: Annotated[int, Meta(gt=0, description="For --form horovod: number of measurements.")] = 10
    num_batches: Annotated[int, Meta(gt=0, description="For --form tf: batches to measure.")] = 100
    display_every: Annotated[int, Meta(gt=0, description="For --form tf: batches between lines.")] = 10
    weight_decay: Annotated[float, Meta(ge=0, description="Weight decay.")] = 0.0
    max_steps: Annotated[int, Meta(ge=0, description="End after this many steps; 0: when everything is measured.")] = 0

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """Options from what was given. ``max_steps`` reduces the measured steps first, then warm-up batches.

        >>> made = Options.of({"max_steps": 25})
        >>> made.warmup_batches, made.iters, made.batches_per_iter
        (5, 2, 10)
        """
        made = super().of(given)
        assert isinstance(made, Options)
        timed = made.num_batches if made.form == "tf" else made.iters * made.batches_per_iter
        if not made.max_steps or made.warmup_batches + timed <= made.max_steps:
            return made
        timed = max(1, made.max_steps - max(1, min(made.warmup_batches, made.max_steps // 5)))
        group = min(made.batches_per_iter, timed)
        if made.form == "horovod":
            timed -= timed % group
        return msgspec.structs.replace(
            made,
            warmup_batches=max(1, made.max_steps - timed),
            num_batches=timed,
            batches_per_iter=group,
            iters=max(1, timed // group),
        )

    def steps(self, a_step: int, samples: int) -> float:
        """Those that were asked for, whatever the samples."""
        timed = self.num_batches if self.form == "tf" else self.iters * self.batches_per_iter
        return float(self.warmup_batches + timed)

    def check(self) -> None:
        super().check()
        if self.framework != "torch":
            raise UsageError(
                f"--framework {self.framework}: the synthetic workload is of torch. Leave it out, or measure with "
                f"'hora bench train --framework {self.framework}'."
            )
        if self.max_minutes:
            raise UsageError(
                f"--max-minutes {self.max_minutes:g}: the synthetic workload measures a fixed number of batches. "
                "Leave it out, or take another workload."
            )
        for name in ("emulate_workers", "logical_workers", "accumulate"):
            if getattr(self, name) > 1:
                flag = f"--{name.replace('_', '-')}"
                raise UsageError(
                    f"{flag} {getattr(self, name)}: the synthetic workload measures the speed of the workers that "
                    "there are, one batch a step. Leave it out, or take another workload."
                )
        if self.resume != "no":
            raise UsageError(
                f"--resume {self.resume}: the synthetic workload keeps nothing to continue from. Leave it out."
            )
        if 0 < self.image_size < 32:
            raise UsageError(f"--image-size {self.image_size} is too small for these networks. Give 32 or more.")
        if self.image_size and not self.model.startswith("resnet"):
            raise UsageError(f"--image-size {self.image_size}: {self.model} takes one size only. Leave it out.")
