"""What can be set of the ImageNet workload, and the published schedules by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from hora.errors import UsageError
from hora.workloads import optimizers
from hora.workloads import options as base

__all__ = ["Architecture", "Options", "Schedule"]

Architecture = Literal["resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "convnext_tiny"]
Schedule = Literal["naive", "linear", "stepping:5", "gradual:5", "gradual:10", "goyal", "lars"]

_STUDY = {"rule": "linear", "decay": "30,60,80"}
_LARGE_BATCH = {"decay_weights_only": True}  # what Goyal et al., LARS and LAMB have in common


class Options(base.WorkloadOptions, frozen=True, kw_only=True):
    """The defaults are the reference study's.

    >>> plan = Options.of({"schedule": "gradual:5"}).plan(samples=1_281_167, workers=32)
    >>> [round(plan.lr_at_epoch(epoch), 2) for epoch in (0, 1, 2, 3, 4, 5, 30)]
    [0.05, 0.36, 0.67, 0.98, 1.29, 1.6, 0.16]
    >>> Options.of({"schedule": "naive"}).plan(samples=1_281_167, workers=32).peak_lr
    0.1
    """

    workload: ClassVar[str] = "imagenet"
    unused: ClassVar[frozenset[str]] = frozenset()
    data_wanted: ClassVar[str] = "Photographs, in folders or shards,"
    data_ways: ClassVar[tuple[tuple[str, str], ...]] = (("make textures", ""),)
    usual_samples: ClassVar[int] = 1_281_167
    usual_speed: ClassVar[float] = 3.0
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "schedule=naive": {"rule": "none", "decay": "every:30"},
        "schedule=linear": _STUDY,
        "schedule=stepping:5": _STUDY | {"warmup": "stepping:5"},
        "schedule=gradual:5": _STUDY | {"warmup": "gradual:5"},
        "schedule=gradual:10": _STUDY | {"warmup": "gradual:10"},
        "schedule=goyal": _STUDY
        | _LARGE_BATCH
        | {"batch": 32, "warmup": "iteration:5", "optimizer": "nesterov", "zero_gamma": True, "small_fc": True},
        "schedule=lars": _LARGE_BATCH
        | {
            "epochs": 42.0,
            "lr": None,  # by the global batch
            "rule": "lars",
            "warmup": "zero:5",
            "decay": "polynomial:2",
            "optimizer": "lars",
            "weight_decay": 2e-4,
            "label_smoothing": 0.1,
        },
        **optimizers.PRESETS,
    }

    epochs: base.Epochs = 90.0
    batch: base.Batch = 128
    decay: base.Decay = "30,60,80"
    last: Annotated[base.Last, Meta(description="Keep or drop the last, incomplete batch.")] = "keep"
    loaders: Annotated[int, Meta(ge=0, description="Number of data-loading processes per worker.")] = 4
    log_every: Annotated[int, Meta(gt=0, description="Log every N steps.")] = 10

    arch: Annotated[Architecture, Meta(description="The network.")] = "resnet50"
    schedule: Annotated[
        Schedule,
        Meta(description="Defaults for everything below and for rate, rule, warm-up and decay: as in the study, in "
                         "Goyal et al., or in MLPerf with LARS."),
    ] = "linear"  # fmt: skip
    optimizer: Annotated[
        optimizers.OptimizerName, Meta(description="sgd, also called momentum, has --momentum; nesterov is Nesterov's.")
    ] = "sgd"
    momentum: Annotated[float, Meta(ge=0, lt=1, description="Momentum, for sgd, nesterov and lars.")] = 0.9
    weight_decay: Annotated[float, Meta(ge=0, description="Weight decay.")] = 1e-4
    decay_weights_only: Annotated[bool, Meta(description="Do not decay biases and BN parameters.")] = False
    zero_gamma: Annotated[bool, Meta(description="Initialise every residual block as an identity.")] = False
    small_fc: Annotated[bool, Meta(description="Initialise the classifier's weights from N(0, 0.01).")] = False
    label_smoothing: Annotated[float, Meta(ge=0, lt=1, description="Label smoothing.")] = 0.0
    image_size: Annotated[int, Meta(ge=32, description="Height and width of the images that the network gets.")] = 224
    resize: Annotated[int, Meta(ge=32, description="Shorter side in validation, before the centre crop.")] = 256
    weights: Annotated[str, Meta(description="File of initial weights, such as torchvision's.")] = ""
    evaluate: Annotated[bool, Meta(description="Only validate --resume or --weights.")] = False

    def check(self) -> None:
        super().check()
        if self.resize < self.image_size:
            raise UsageError(
                f"--resize {self.resize} is less than --image-size {self.image_size}, so validation has no such centre "
                f"to cut out. Give --resize {round(self.image_size * 8 / 7)} or so."
            )
        if self.framework == "keras" and self.optimizer == "lars":
            given = "--schedule lars" if self.schedule == "lars" else "--optimizer lars"
            raise UsageError(
                f"{given} with --framework keras: Keras has no LARS. Give --optimizer lamb with its rate, --lr; or "
                "train with --framework torch."
            )
        if self.arch == "convnext_tiny" and (self.framework == "keras" or self.zero_gamma or self.small_fc):
            odd = "--framework keras" if self.framework == "keras" else "--zero-gamma and --small-fc"
            raise UsageError(f"--arch convnext_tiny with {odd}: these are for ResNets. Leave one of them out.")
        if self.evaluate and self.resume == "no" and not self.weights:
            raise UsageError("--evaluate needs something to validate. Give --resume CHECKPOINT or --weights FILE.")

    @classmethod
    def speed_of(cls, given: Mapping[str, Any]) -> float:
        pixels = given.get("image_size")
        return super().speed_of(given) * ((224 / pixels) ** 2 if isinstance(pixels, int) and pixels > 0 else 1)
