"""The learning rate of a run on many workers: warm-up, and factors for ranges of epochs.

A constant ``multiplier`` is what its users mean by it: the factor in that range of epochs. Horovod had it so until
v0.22.1; from v0.23 on it takes it to the power of the epochs since ``start_epoch``, with which its own ImageNet example
decays a hundredfold in two epochs. That meaning is there as ``compound=True``.

Momentum correction (Goyal et al., remark 2): Keras folds the rate into the velocity, so that a velocity from before a
change is too small or too large after it. Horovod multiplies the momentum by new rate / old rate for one batch; Keras 3
compiles the momentum into the step, so here the velocity itself is multiplied, once, which is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from hora.engine import session
from hora.errors import UsageError
from hora.keras.adapter import to_numpy
from hora.keras.optimizer import innermost
from hora.schedule.warmup import Rates, Warmup

__all__ = ["LearningRateScheduleCallback", "LearningRateWarmupCallback", "scale_velocity"]


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Sets the learning rate to ``initial_lr * multiplier`` from ``start_epoch`` until before ``end_epoch``.

    Args:
        initial_lr: The rate to multiply, already scaled for the number of workers. Without it the optimizer's rate when
            training begins is taken, which is not the initial one if that is a continuation.
        multiplier: A factor, or a function of the epoch that returns one.
        start_epoch: The first epoch that it sets the rate of.
        end_epoch: The first epoch that it does not any more; None for all.
        staircase: Once an epoch; False for every batch, with the epoch as a fraction.
        momentum_correction: Let the velocity follow the rate, in optimizers with a momentum.
        steps_per_epoch: How many batches an epoch has, for staircase=False; Keras usually knows.
        compound: Take a constant multiplier to the power of the epochs since ``start_epoch``, as Horovod 0.23 does.

    >>> callback = LearningRateScheduleCallback(0.4, multiplier=0.1, start_epoch=30, end_epoch=60)
    >>> [callback.factor(epoch) for epoch in (30, 31)]
    [0.1, 0.1]
    >>> callback = LearningRateScheduleCallback(0.4, multiplier=0.1, start_epoch=30, compound=True)
    >>> [callback.factor(epoch) for epoch in (30, 31)]
    [1.0, 0.1]
    """

    def __init__(
        self,
        initial_lr: float | None = None,
        multiplier: float | Callable[[float], float] | None = None,
        start_epoch: float = 0,
        end_epoch: float | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        compound: bool = False,
    ) -> None:
        super().__init__()
        if multiplier is None:
            raise UsageError(
                f"{type(self).__name__} without a multiplier. It says what the rate is multiplied by. Give a number or"
                " a function of the epoch."
            )
        self.initial_lr, self.multiplier = initial_lr, multiplier
        self.start_epoch, self.end_epoch, self.staircase = start_epoch, end_epoch, staircase
        self.momentum_correction, self.steps_per_epoch, self.compound = momentum_correction, steps_per_epoch, compound
        self.current_epoch = 0

    def factor(self, epoch: float) -> float:
        """What the rate is multiplied by at ``epoch``."""
        if callable(self.multiplier):
            return float(self.multiplier(epoch))
        return float(self.multiplier ** (epoch - self.start_epoch if self.compound else 1))

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self.initial_lr is None:
            self.initial_lr = _rate(self.model.optimizer)
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = (self.params or {}).get("steps")
            if not self.steps_per_epoch:
                raise UsageError(
                    f"{type(self).__name__} changes the rate every batch, and Keras does not know how many batches an"
                    " epoch of this data has. Give it steps_per_epoch."
                )

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.current_epoch = epoch
        if self.staircase and self._covers(epoch):
            self._set(epoch)

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if not self.staircase and self._covers(self.current_epoch):
            assert self.steps_per_epoch is not None
            self._set(self.current_epoch + batch / self.steps_per_epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None:
            logs["lr"] = _rate(self.model.optimizer)

    def _covers(self, epoch: int) -> bool:
        return self.start_epoch <= epoch and (self.end_epoch is None or epoch < self.end_epoch)

    def _set(self, epoch: float) -> None:
        assert self.initial_lr is not None
        optimizer = self.model.optimizer
        before, after = _rate(optimizer), self.initial_lr * self.factor(epoch)
        if after == before:
            return
        try:
            optimizer.learning_rate = after
        except TypeError as error:
            raise UsageError(
                f"{type(self).__name__}: the learning rate of this optimizer cannot be set, because it was made with a"
                " schedule of Keras. Two schedules would contradict each other. Give the optimizer a number."
            ) from error
        if self.momentum_correction and before:
            scale_velocity(optimizer, _rate(optimizer) / before)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate, batch by batch, from ``initial_lr / size`` to ``initial_lr``.

    Args:
        initial_lr: The rate to arrive at, already scaled for the number of workers. Without it the optimizer's rate
            when training begins is taken.
        warmup_epochs: How long it takes.
        momentum_correction: Let the velocity follow the rate, in optimizers with a momentum.
        steps_per_epoch: How many batches an epoch has; Keras usually knows.
        verbose: 1 to have rank 0 say when it is over.
    """

    def __init__(
        self,
        initial_lr: float | None = None,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            initial_lr, self._raised, 0, warmup_epochs, staircase=False, momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )  # fmt: skip
        self.warmup, self.verbose = Warmup("horovod", warmup_epochs), verbose

    def _raised(self, epoch: float) -> float:
        assert self.steps_per_epoch is not None
        size = session.size()
        return self.warmup.rate(epoch, 1 / self.steps_per_epoch, Rates(1.0, 1.0 / size, 1.0, size))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        if epoch + 1 == self.end_epoch and self.verbose > 0 and session.rank() == 0:
            rate = _rate(self.model.optimizer)
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.", flush=True)


def _rate(optimizer: Any) -> float:
    return float(to_numpy(optimizer.learning_rate))


def scale_velocity(optimizer: Any, ratio: float) -> None:
    """Multiply what SGD and RMSprop remember of earlier steps, into which the rate is folded."""
    inner = innermost(optimizer)
    if getattr(inner, "momentum", 0.0):
        for velocity in getattr(inner, "momentums", None) or getattr(inner, "_momentums", None) or ():
            if velocity is not None:
                velocity.assign(velocity * ratio)
