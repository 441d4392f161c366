"""What can be set of every workload, and how. A workload derives its own ``WorkloadOptions`` from these, with its own
defaults.

The command line is made from the fields (``hora.cli.train``): name, type, bounds, description and default. Nothing here
imports a framework.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from hora.errors import UsageError
from hora.schedule import LearningRatePlan, Rule, parse_decay, parse_warmup

__all__ = ["Batch", "Decay", "Epochs", "LearningRate", "Warmup", "WorkloadOptions"]

Epochs = Annotated[float, Meta(gt=0, description="Number of epochs; may be a fraction, such as 0.5.")]
Batch = Annotated[int, Meta(gt=0, description="Batch size per worker.")]
LearningRate = Annotated[float | None, Meta(description="Learning rate at --base-batch.")]
Warmup = Annotated[str, Meta(description="Learning-rate warm-up, as in 'hora plan', such as gradual:5.")]
Decay = Annotated[str, Meta(description="Learning-rate decay, as in 'hora plan', such as 30,60,80.")]
Precision = Literal["float32", "bf16", "fp16"]
Compression = Literal["none", "fp16", "bf16", "power_sgd", "top_k", "one_bit", "int8"]
Last = Literal["drop", "keep"]
Framework = Literal["torch", "keras"]
Strategy = Literal["hora", "ddp"]
_PLACES = ("data", "out", "json", "resume")
Device = Literal["auto", "cpu", "cuda"]


class WorkloadOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Make them with ``of``, which fills in and checks; they go to workers as JSON.

    ``presets`` are other defaults that go with a choice: ``{"network=horovod": {"batch": 64}}``.
    """

    workload: ClassVar[str] = ""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    unused: ClassVar[frozenset[str]] = frozenset({"loaders"})  # options that it has no use for: hidden, and refused
    not_elastic: ClassVar[str] = ""  # why its workers cannot come and go, and what to do instead
    usual_metric: ClassVar[str] = "val_accuracy"  # by which runs are compared
    data_wanted: ClassVar[str] = ""  # what is looked for in --data; and the commands that bring it, with their folders
    data_ways: ClassVar[tuple[tuple[str, str], ...]] = ()
    usual_samples: ClassVar[int] = 60_000  # to train on, of the real data set
    usual_speed: ClassVar[float] = 10.0  # images/s of one core, of the order of what an AMD EPYC does
    other_speeds: ClassVar[Mapping[str, float]] = {}  # the same for a choice: {"network=horovod": 3500.0}

    framework: Annotated[
        Framework, Meta(description="Framework: PyTorch, or Keras 3 on the backend that KERAS_BACKEND names.")
    ] = "torch"
    device: Annotated[
        Device, Meta(description="Where to compute: cpu, cuda (a GPU), or auto: on a GPU if there is one.")
    ] = "auto"
    epochs: Epochs = 1.0
    batch: Batch = 32
    data: Annotated[str, Meta(description="Folder of the data set.  [default: data/WORKLOAD]")] = ""
    out: Annotated[str, Meta(description="Folder of the run: checkpoints, metrics.  [default: runs/WORKLOAD]")] = ""
    resume: Annotated[
        str, Meta(description="Resume from a checkpoint: 'auto' for the newest in --out, if any, or its path; or 'no'.")
    ] = "no"
    overwrite: Annotated[bool, Meta(description="Delete the run that is in --out first.")] = False
    seed: Annotated[int, Meta(ge=0, description="Random seed.")] = 42

    lr: LearningRate = 0.1
    base_batch: Annotated[int, Meta(gt=0, description="Global batch size that --lr is for.")] = 256
    rule: Annotated[Rule, Meta(description="How the learning rate scales with the global batch size.")] = "linear"
    warmup: Warmup = "none"
    decay: Decay = "none"
    schedule_epochs: Annotated[
        float,
        Meta(ge=0, description="Epochs of the learning-rate schedule, if this run is a part of it; 0: --epochs."),
    ] = 0.0

    accumulate: Annotated[int, Meta(gt=0, description="Batches to accumulate per step.")] = 1
    emulate_workers: Annotated[int, Meta(ge=0, description="Number of workers to emulate; 0: the real ones.")] = 0
    logical_workers: Annotated[
        int,
        Meta(
            ge=0,
            description="Logical workers; results are bitwise independent of the number of processes.",
        ),
    ] = 0
    last: Annotated[Last, Meta(description="Keep or drop the last, incomplete batch.")] = "drop"
    precision: Annotated[
        Precision,
        Meta(description="Precision: bf16, fp16 (with loss scaling) or float32; weights stay float32."),
    ] = "float32"
    compression: Annotated[Compression, Meta(description="Gradient compression.")] = "none"
    strategy: Annotated[
        Strategy, Meta(description="Who averages gradients: Hora, or PyTorch's DistributedDataParallel, to compare.")
    ] = "hora"
    loaders: Annotated[int, Meta(ge=0, description="Number of data-loading processes per worker.")] = 0

    inter_threads: Annotated[
        int, Meta(ge=0, description="Inter-op threads per worker; 0: the framework's default.")
    ] = 0

    validate: Annotated[bool, Meta(description="Validate after every epoch.")] = True
    val_batch: Annotated[int, Meta(gt=0, description="Batch size per worker in validation.")] = 1000

    save: Annotated[bool, Meta(description="Write checkpoints.")] = True
    save_every: Annotated[
        float, Meta(ge=0, description="Epochs between checkpoints, such as 1 or 0.25; 0: only at the end.")
    ] = 1.0
    keep: Annotated[int, Meta(ge=0, description="Recent checkpoints to keep, besides the best; 0: all.")] = 3
    max_steps: Annotated[int, Meta(ge=0, description="Stop after this many steps; 0: after --epochs.")] = 0
    max_minutes: Annotated[
        float, Meta(ge=0, description="Stop after this many minutes, with a validation and a checkpoint; 0: never.")
    ] = 0.0
    log_every: Annotated[int, Meta(gt=0, description="Log every N steps.")] = 100
    json: Annotated[str, Meta(description="File for the final metrics.")] = ""
    tensorboard: Annotated[bool, Meta(description="Also write TensorBoard event files to --out.")] = False

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> WorkloadOptions:
        """Options from those that were given: then come presets, then defaults. Everything is checked.

        >>> class Mine(WorkloadOptions, frozen=True, kw_only=True):
        ...     network: Literal["large", "small"] = "large"
        ...     presets = {"network=small": {"batch": 8}}
        >>> Mine.of({}).batch, Mine.of({"network": "small"}).batch, Mine.of({"network": "small", "batch": 9}).batch
        (32, 8, 9)
        >>> Mine.of({"batch": 0})
        Traceback (most recent call last):
        hora.errors.UsageError: --batch 0: Expected `int` >= 1. ...
        """
        plain = cls._checked({}, given)
        preset: dict[str, Any] = {}
        for choice, values in cls.presets.items():
            name, _, value = choice.partition("=")
            if getattr(plain, name) == value:
                preset |= values
        made = cls._checked(preset, given)
        made.check()
        return made

    @classmethod
    def _checked(cls, preset: Mapping[str, Any], given: Mapping[str, Any]) -> WorkloadOptions:
        try:
            return msgspec.convert({**preset, **given}, cls)
        except msgspec.ValidationError as error:
            what, _, where = str(error).partition(" - at `$.")
            name = where.rstrip("`")
            flag = f"--{name.replace('_', '-')} {given.get(name)}" if name else "options"
            raise UsageError(f"{flag}: {what}. Change it; --help says what it takes.") from None

    def check(self) -> None:
        """Refuse what can be refused before anything starts. A workload may refuse more.

        >>> WorkloadOptions.of({"framework": "keras", "emulate_workers": 4})
        Traceback (most recent call last):
        hora.errors.UsageError: --emulate-workers 4 with --framework keras: ...
        """
        if self.framework == "keras" and self.emulate_workers:
            raise UsageError(
                f"--emulate-workers {self.emulate_workers} with --framework keras: Keras has one set of statistics and "
                "of random numbers a model, so a process is one worker. Leave it out, or train with --framework torch."
            )
        self._check_logical()
        if self.framework == "keras" and self.precision == "fp16":
            raise UsageError(
                "--precision fp16 with --framework keras: the loss would have to be scaled by Keras's own optimizer. "
                "Give --precision bf16, or train with --framework torch."
            )
        if 0 < self.schedule_epochs < self.epochs:
            raise UsageError(
                f"--schedule-epochs {self.schedule_epochs:g} is less than --epochs {self.epochs:g}: the run would "
                "continue after its schedule has ended. Give as many epochs or more, or leave it out."
            )
        if self.strategy == "ddp" and (self.framework != "torch" or self.compression != "none"):
            name = "framework" if self.framework != "torch" else "compression"
            odd = f"--{name} {getattr(self, name)}"
            raise UsageError(
                f"--strategy ddp with {odd}: DistributedDataParallel is PyTorch's, and averages gradients as they are. "
                f"Leave {odd} out, or train with --strategy hora."
            )
        self.plan(1 << 40, max(1, self.emulate_workers, self.logical_workers))

    def _check_logical(self) -> None:
        """
        >>> WorkloadOptions.of({"logical_workers": 4, "strategy": "ddp"})
        Traceback (most recent call last):
        hora.errors.UsageError: --logical-workers 4 with --strategy ddp: ...
        """
        if not self.logical_workers:
            return
        reasons = {
            "--framework keras": (self.framework == "keras", "Keras adds up the gradients of a process itself"),
            "--strategy ddp": (self.strategy == "ddp", "DDP sums in an order that depends on the processes"),
            f"--compression {self.compression}": (
                self.compression != "none",
                "what is left out of a gradient would depend on the processes",
            ),
            f"--emulate-workers {self.emulate_workers}": (
                bool(self.emulate_workers),
                "both set the number of workers",
            ),
        }
        for odd, (is_given, why) in reasons.items():
            if is_given:
                raise UsageError(f"--logical-workers {self.logical_workers} with {odd}: {why}. Leave one of them out.")

    @classmethod
    def speed_of(cls, given: Mapping[str, Any]) -> float:
        """A guess at the images/s of one core, with these options.

        >>> WorkloadOptions.speed_of({})
        10.0
        """
        chosen = (speed for choice, speed in cls.other_speeds.items() if _is_chosen(choice, given))
        return next(chosen, cls.usual_speed)

    @classmethod
    def count_samples(cls, folder: Path) -> int:
        """How many samples to train on a folder has, where that is quick to see; else 0. May raise OSError.

        >>> WorkloadOptions.count_samples(Path("/no/such/folder"))
        0
        """
        return 0

    def steps(self, a_step: int, samples: int) -> float:
        """How many steps a run has, each of so many samples in all.

        >>> WorkloadOptions.of({"epochs": 2}).steps(100, 1000), WorkloadOptions.of({"max_steps": 5}).steps(100, 1000)
        (20.0, 5.0)
        """
        whole = self.epochs * max(1, samples // a_step)
        return float(min(whole, self.max_steps) if self.max_steps else whole)

    @property
    def loads_ahead(self) -> bool:
        """Whether it has use for --loaders."""
        return "loaders" not in self.unused

    def plan(self, samples: int, workers: int) -> LearningRatePlan:
        """The learning-rate plan of this run, on that many samples and workers (emulated ones, if any).

        >>> WorkloadOptions.of({"lr": 0.1, "base_batch": 256, "batch": 128}).plan(60000, 4).peak_lr
        0.2
        """
        warmup = parse_warmup(self.warmup)
        return LearningRatePlan(
            base_lr=self.lr,
            base_batch=self.base_batch,
            batch=self.batch,
            workers=workers,
            accumulation=self.accumulate,
            rule=self.rule,
            warmup=warmup,
            decay=parse_decay(self.decay),
            epochs=max(self.schedule_epochs or self.epochs, warmup.epochs),  # a run may end before its warm-up does
            samples=samples,
            last=self.last,
        )

    def alike(self) -> dict[str, Any]:
        """The options that all ranks must have alike; a place on a disk may be another on every host.

        >>> "--out" in WorkloadOptions().alike(), WorkloadOptions().alike()["--val-batch"]
        (False, 1000)
        """
        return {f"--{k.replace('_', '-')}": v for k, v in msgspec.to_builtins(self).items() if k not in _PLACES}

    @property
    def data_folder(self) -> Path:
        """Where the data set is.

        >>> WorkloadOptions().data_folder.as_posix(), WorkloadOptions(data="/scratch/mnist").data_folder.as_posix()
        ('data', '/scratch/mnist')
        """
        return Path(self.data) if self.data else Path("data") / self.workload

    @property
    def out_folder(self) -> Path:
        """Where the run keeps its files."""
        return Path(self.out) if self.out else Path("runs") / self.workload


def _is_chosen(choice: str, given: Mapping[str, Any]) -> bool:
    name, _, value = choice.partition("=")
    return str(given.get(name)) == value
