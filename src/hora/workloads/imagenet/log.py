"""The lines of the reference study's logs, which tools parse: those of pytorch/examples of February 2019.

A number in brackets is the mean since the epoch began, its first batch included.
"""

from __future__ import annotations

from typing import Any

import torch

from hora.schedule import LearningRatePlan

__all__ = ["Meter", "Meters", "epoch_line", "rate_lines", "summary_line", "validation_line", "version_lines"]


class Meter:
    """A value and its mean so far.

    >>> meter = Meter()
    >>> meter.add(1.0, 3); meter.add(5.0)
    >>> meter.value, meter.mean, f"{meter:.3f}"
    (5.0, 2.0, '5.000 (2.000)')
    """

    def __init__(self) -> None:
        self.value = self.total = 0.0
        self.count = 0

    def add(self, value: float, samples: int = 1) -> None:
        self.value = value
        self.total += value * samples
        self.count += samples

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def __format__(self, spec: str) -> str:
        return f"{format(self.value, spec)} ({format(self.mean, spec)})"


class Meters:
    """Those of an epoch's lines; accuracies in percent."""

    def __init__(self) -> None:
        self.time, self.data, self.loss, self.top1, self.top5 = (Meter() for _ in range(5))

    def add(self, samples: int, loss: float, top1: float, top5: float) -> None:
        """Note a batch: its mean loss, and its accuracies as shares."""
        self.loss.add(loss, samples)
        self.top1.add(100 * top1, samples)
        self.top5.add(100 * top5, samples)


def epoch_line(epoch: int, batch: int, batches: int, meters: Meters) -> str:
    r"""
    >>> epoch_line(0, 10, 5005, Meters())
    'Epoch: [0][10/5005]\tTime 0.000 (0.000)\tData 0.000 (0.000)\tLoss 0.0000 (0.0000)\tAcc@1 0.000 (0.000)\t...
    """
    head = f"Epoch: [{epoch}][{batch}/{batches}]\tTime {meters.time:.3f}\tData {meters.data:.3f}"
    return f"{head}\t{_quality(meters)}"


def validation_line(batch: int, batches: int, meters: Meters) -> str:
    r"""
    >>> validation_line(0, 196, Meters())
    'Test: [0/196]\tTime 0.000 (0.000)\tLoss 0.0000 (0.0000)\tAcc@1 0.000 (0.000)\tAcc@5 0.000 (0.000)'
    """
    return f"Test: [{batch}/{batches}]\tTime {meters.time:.3f}\t{_quality(meters)}"


def _quality(meters: Meters) -> str:
    return f"Loss {meters.loss:.4f}\tAcc@1 {meters.top1:.3f}\tAcc@5 {meters.top5:.3f}"


def summary_line(top1: float, top5: float) -> str:
    """
    >>> summary_line(0.71726, 0.90512)
    ' * Acc@1 71.726 Acc@5 90.512'
    """
    return f" * Acc@1 {100 * top1:.3f} Acc@5 {100 * top5:.3f}"


def version_lines() -> list[str]:
    """
    >>> version_lines()[1]
    'torch.cuda.is_available()=...'
    """
    cudnn: Any = torch.backends.cudnn
    return [
        f"torch.version.__version__={torch.__version__}",
        f"torch.cuda.is_available()={torch.cuda.is_available()}",
        f"torch.version.cuda={torch.version.cuda}",
        f"torch.backends.cudnn.version()={cudnn.version()}",
    ]


def rate_lines(epoch: int, plan: LearningRatePlan) -> list[str]:
    """The lines about the learning rate at the start of an epoch.

    >>> from hora.schedule import Warmup
    >>> for line in rate_lines(1, LearningRatePlan(batch=128, workers=32, warmup=Warmup("gradual", 5))):
    ...     print(line)
    Applying gradual warmup for epoch 1. (batch_size=128, world_size=32)
    Setting learning rate for epoch 1 to 0.36
    """
    lines = []
    if plan.warms_up and plan.warmup.covers(epoch):
        place = f"(batch_size={plan.batch}, world_size={plan.workers})"
        lines.append(f"Applying {plan.warmup.kind} warmup for epoch {epoch}. {place}")
    return [*lines, f"Setting learning rate for epoch {epoch} to {float(f'{plan.lr_at_epoch(epoch):.12g}')}"]
