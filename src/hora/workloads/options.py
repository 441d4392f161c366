"""What can be set of every workload, and how. A workload derives its own ``Options`` from these, with its own defaults.

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
from hora.schedule import Plan, Rule, parse_decay, parse_warmup

__all__ = ["Batch", "Decay", "Epochs", "LearningRate", "Options", "Warmup"]

Epochs = Annotated[float, Meta(gt=0, description="Passes over the data; 0.5 is half of one.")]
Batch = Annotated[int, Meta(gt=0, description="Samples each worker takes at a time.")]
LearningRate = Annotated[float | None, Meta(description="The rate that works at --base-batch.")]
Warmup = Annotated[str, Meta(description="How the rate rises at first, as in 'hora plan', such as gradual:5.")]
Decay = Annotated[str, Meta(description="How the rate falls, as in 'hora plan', such as 30,60,80.")]
Precision = Literal["float32", "bf16"]
Compression = Literal["none", "fp16", "bf16", "power_sgd", "top_k", "one_bit", "int8"]
Last = Literal["drop", "keep"]
Framework = Literal["torch", "keras"]


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Make them with ``of``, which fills in and checks; they go to workers as JSON.

    ``presets`` are other defaults that go with a choice: ``{"network=horovod": {"batch": 64}}``.
    """

    workload: ClassVar[str] = ""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    loads_ahead: ClassVar[bool] = False  # whether it has use for --loaders

    framework: Annotated[
        Framework, Meta(description="What computes: PyTorch, or Keras 3 on the backend that KERAS_BACKEND names.")
    ] = "torch"
    epochs: Epochs = 1.0
    batch: Batch = 32
    data: Annotated[str, Meta(description="Folder of the data set.  [default: data/WORKLOAD]")] = ""
    out: Annotated[str, Meta(description="Folder of the run: checkpoints, metrics.  [default: runs/WORKLOAD]")] = ""
    resume: Annotated[
        str, Meta(description="Go on from a checkpoint: 'auto' for the newest in --out, if any, or its path; or 'no'.")
    ] = "no"
    overwrite: Annotated[bool, Meta(description="Delete the run that is in --out first.")] = False
    seed: Annotated[int, Meta(ge=0, description="Of all random numbers.")] = 42

    lr: LearningRate = 0.1
    base_batch: Annotated[int, Meta(gt=0, description="The batch of all workers together that --lr works at.")] = 256
    rule: Annotated[Rule, Meta(description="How the rate grows with the batch.")] = "linear"
    warmup: Warmup = "none"
    decay: Decay = "none"

    accumulate: Annotated[int, Meta(gt=0, description="Batches whose gradients are added up before a step.")] = 1
    emulate_workers: Annotated[
        int, Meta(ge=0, description="Train as so many workers would, on those there are; 0: as many as there are.")
    ] = 0
    last: Annotated[
        Last, Meta(description="Whether an epoch ends with a smaller step for the samples left over, or without them.")
    ] = "drop"
    precision: Annotated[Precision, Meta(description="bf16 computes in bfloat16; weights stay float32.")] = "float32"
    compression: Annotated[Compression, Meta(description="Of gradients, between workers.")] = "none"
    loaders: Annotated[int, Meta(ge=0, description="Processes that load data, for each worker.")] = 0

    inter_threads: Annotated[
        int, Meta(ge=0, description="Threads of the inter-op pool, for each worker; 0: as the framework has it.")
    ] = 0

    validate: Annotated[bool, Meta(description="Whether the model is validated after every epoch.")] = True
    val_batch: Annotated[int, Meta(gt=0, description="Samples each worker takes at a time in validation.")] = 1000

    save: Annotated[bool, Meta(description="Whether checkpoints are written.")] = True
    save_every: Annotated[
        float, Meta(ge=0, description="Epochs between checkpoints, such as 1 or 0.25; 0: only at the end.")
    ] = 1.0
    keep: Annotated[int, Meta(ge=0, description="Checkpoints that stay, besides the best one; 0: all.")] = 3
    max_steps: Annotated[int, Meta(ge=0, description="End after so many steps; 0: after --epochs.")] = 0
    log_every: Annotated[int, Meta(gt=0, description="Steps between lines in a log.")] = 100
    json: Annotated[str, Meta(description="File for the final metrics.")] = ""
    tensorboard: Annotated[bool, Meta(description="Write TensorBoard's event files to --out too.")] = False

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """Options from those that were given: then come presets, then defaults. Everything is checked.

        >>> class Mine(Options, frozen=True, kw_only=True):
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
    def _checked(cls, preset: Mapping[str, Any], given: Mapping[str, Any]) -> Options:
        try:
            return msgspec.convert({**preset, **given}, cls)
        except msgspec.ValidationError as error:
            what, _, where = str(error).partition(" - at `$.")
            name = where.rstrip("`")
            flag = f"--{name.replace('_', '-')} {given.get(name)}" if name else "options"
            raise UsageError(f"{flag}: {what}. Change it; --help says what it takes.") from None

    def check(self) -> None:
        """Refuse what can be refused before anything starts. A workload may refuse more.

        >>> Options.of({"framework": "keras", "emulate_workers": 4})
        Traceback (most recent call last):
        hora.errors.UsageError: --emulate-workers 4 with --framework keras: ...
        """
        if self.framework == "keras" and self.emulate_workers:
            raise UsageError(
                f"--emulate-workers {self.emulate_workers} with --framework keras: Keras has one set of statistics and "
                "of random numbers a model, so a process is one worker. Leave it out, or train with --framework torch."
            )
        self.plan(1 << 40, max(1, self.emulate_workers))

    def plan(self, samples: int, workers: int) -> Plan:
        """The learning-rate plan of this run, on so many samples and workers (emulated ones, if any).

        >>> Options.of({"lr": 0.1, "base_batch": 256, "batch": 128}).plan(60000, 4).peak_lr
        0.2
        """
        warmup = parse_warmup(self.warmup)
        return Plan(
            base_lr=self.lr,
            base_batch=self.base_batch,
            batch=self.batch,
            workers=workers,
            accumulation=self.accumulate,
            rule=self.rule,
            warmup=warmup,
            decay=parse_decay(self.decay),
            epochs=max(self.epochs, warmup.epochs),  # a run may end before its warm-up does
            samples=samples,
        )

    @property
    def data_folder(self) -> Path:
        """Where the data set is.

        >>> Options().data_folder.as_posix(), Options(data="/scratch/mnist").data_folder.as_posix()
        ('data', '/scratch/mnist')
        """
        return Path(self.data) if self.data else Path("data") / self.workload

    @property
    def out_folder(self) -> Path:
        """Where the run keeps its files."""
        return Path(self.out) if self.out else Path("runs") / self.workload
