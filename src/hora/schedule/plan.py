"""The learning-rate plan of a run: from a rate that is known to work at one batch size to the rate at every moment of a
run on many workers.

A plan counts samples, never steps: steps mean something else on every number of workers. It is immutable; a run that
continues with more or fewer workers makes another with ``resized`` and asks it at the same number of samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from hora.errors import UsageError
from hora.schedule.decay import Decay
from hora.schedule.warmup import Rates, Warmup

__all__ = ["IMAGENET_SAMPLES", "Last", "LearningRatePlan", "Rule"]

Rule = Literal["none", "linear", "sqrt", "lars"]
Last = Literal["drop", "keep"]

IMAGENET_SAMPLES = 1_281_167  # training images
PLAIN_SGD_LIMIT, LARS_LIMIT = 8192, 32768  # largest global batch known to keep ResNet-50's accuracy on ImageNet
LARS_RATES = ((32768, 31.2), (16384, 25.0), (0, 10.0))  # (batch from, base rate) as MLPerf's ResNet-50 has them
STUDY_THRESHOLDS = {"stepping": 512, "gradual": 128}  # below this global batch the study's scripts do not warm up


class LearningRatePlan(msgspec.Struct, frozen=True, kw_only=True):
    """A run of ``epochs`` over ``samples`` samples by ``workers`` workers with ``batch`` samples each a step.

    ``base_lr`` is the rate that works at a batch of ``base_batch``. With rule "lars", ``base_lr`` None takes the
    published rate for the batch.

    >>> plan = LearningRatePlan(base_lr=0.1, base_batch=256, batch=128, workers=32, warmup=Warmup("gradual", 5),
    ...             decay=Decay("steps", steps=((30, 0.1), (60, 0.01), (80, 0.001))), epochs=90, samples=1_281_167,
    ...             last="keep")
    >>> plan.global_batch, plan.peak_lr, plan.steps_per_epoch
    (4096, 1.6, 313)
    >>> [round(plan.lr_at_epoch(epoch), 3) for epoch in (0, 1, 4, 5, 30, 60, 80)]
    [0.05, 0.36, 1.29, 1.6, 0.16, 0.016, 0.002]
    """

    base_lr: float | None = 0.1
    base_batch: int = 256
    batch: int = 32
    workers: int = 1
    accumulation: int = 1  # batches whose gradients are added up before a step
    rule: Rule = "linear"
    warmup: Warmup = Warmup()
    decay: Decay = Decay()
    epochs: float = 90.0
    samples: int = IMAGENET_SAMPLES  # in one epoch
    last: Last = "drop"  # whether an epoch ends with a smaller step for the samples left over

    def __post_init__(self) -> None:
        for name in ("base_batch", "batch", "workers", "accumulation", "epochs", "samples"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name}={getattr(self, name)} in a learning-rate plan must be more than 0.")
        if self.base_lr is None and self.rule != "lars":
            raise UsageError(f"rule {self.rule!r} needs base_lr, the rate that works at a batch of {self.base_batch}.")
        if self.base_lr is not None and not 0 < self.base_lr < float("inf"):
            raise UsageError(f"base_lr={self.base_lr} must be a positive number.")
        if self.warmup.epochs > self.epochs:
            raise UsageError(f"a warm-up of {self.warmup.epochs:g} epochs is longer than the run of {self.epochs:g}.")

    @property
    def global_batch(self) -> int:
        """Samples a step, of all workers."""
        return self.batch * self.workers * self.accumulation

    @property
    def steps_per_epoch(self) -> int:
        """Steps in an epoch, at least one: whole ones, and with ``last="keep"`` one for what is left over."""
        whole, left = divmod(self.samples, self.global_batch)
        return max(1, whole + (1 if left and self.last == "keep" else 0))

    @property
    def total_steps(self) -> int:
        return round(self.steps_per_epoch * self.epochs)

    @property
    def one_worker_lr(self) -> float:
        """What the rule gives a single worker with this batch."""
        return self._scaled(self.batch)

    @property
    def peak_lr(self) -> float:
        """The rate after warm-up and before decay."""
        return self._scaled(self.global_batch)

    def _scaled(self, batch: int) -> float:
        if self.base_lr is None:
            return next(rate for least, rate in LARS_RATES if self.global_batch >= least)
        ratio = batch / self.base_batch
        match self.rule:
            case "linear":
                return self.base_lr * ratio
            case "sqrt":
                return self.base_lr * float(ratio**0.5)
        return self.base_lr

    @property
    def warms_up(self) -> bool:
        """Whether there is a warm-up: the study's kinds have none for batches that need none."""
        return self.warmup.kind != "none" and self.global_batch >= STUDY_THRESHOLDS.get(self.warmup.kind, 0)

    def lr_at_epoch(self, epoch: float) -> float:
        """The rate of the step that begins ``epoch`` epochs (2.5: half-way through the third) into the run."""
        if self.warms_up and self.warmup.covers(epoch):
            rates = Rates(self.base_lr or 0.0, self.one_worker_lr, self.peak_lr, self.workers)
            return self.warmup.rate(epoch, 1 / self.steps_per_epoch, rates)
        return self.decay.rate(self.peak_lr, epoch, self.warmup.epochs if self.warms_up else 0.0, self.epochs)

    def lr(self, samples_seen: int) -> float:
        """The rate of the step that begins when this many samples have been seen, by all workers together.

        >>> plan = LearningRatePlan(batch=128, workers=2, samples=1024, epochs=4, warmup=Warmup("iteration", 2))
        >>> [plan.lr(256 * step) for step in (0, 4, 8)] == [0.1, 0.1, 0.1]     # the global batch is the base batch
        True
        """
        whole = self.steps_per_epoch * self.global_batch  # what an epoch takes if it has whole steps only
        per_epoch = min(whole, self.samples) if self.last == "keep" else whole
        return self.lr_at_epoch(samples_seen / per_epoch)

    def steps(self) -> Iterator[float]:
        """The rate of every step of the run.

        >>> [round(lr, 2) for lr in LearningRatePlan(base_lr=1.0, base_batch=1, batch=1, samples=2, epochs=2,
        ...                              decay=Decay("every", 1.0)).steps()]
        [1.0, 1.0, 0.1, 0.1]
        """
        for step in range(self.total_steps):
            yield self.lr_at_epoch(step / self.steps_per_epoch)

    def resized(self, workers: int) -> LearningRatePlan:
        """The same plan for another number of workers; ask it at the same number of samples.

        >>> LearningRatePlan(base_lr=0.1, base_batch=256, batch=128, workers=2).resized(4).peak_lr
        0.2
        """
        return msgspec.structs.replace(self, workers=workers)

    def cautions(self) -> list[str]:
        """What is known to go wrong with a plan like this.

        >>> LearningRatePlan(batch=256, workers=64).cautions()[0][:53]
        'a global batch of 16384 is beyond 8192, where plain S'
        """
        found = []
        limit, name = (LARS_LIMIT, "LARS") if self.rule == "lars" else (PLAIN_SGD_LIMIT, "plain SGD")
        if self.global_batch > limit:
            advice = "take LARS (--rule lars)" if self.rule != "lars" else "take fewer workers or a smaller batch"
            found.append(
                f"a global batch of {self.global_batch} is beyond {limit}, where {name} is known to keep the accuracy "
                f"of ResNet-50 on ImageNet: {advice}"
            )
        if self.rule == "linear" and self.global_batch > 2 * self.base_batch and not self.warms_up:
            found.append(
                f"the rate is {self.peak_lr / (self.base_lr or 1):.3g} times the reference from the first step: warm "
                "up, for example --warmup iteration:5"
            )
        if self.samples < self.global_batch:
            found.append(f"an epoch of {self.samples} samples does not fill one global batch of {self.global_batch}")
        return found
