"""What the study's GPUs, batches, epochs and images become here.

ResNet-50 on 1.28 million images for 90 epochs becomes Horovod's small CNN on 40,000 digits for 9: its 30, 60 and 80
become 3, 6 and 8, its warm-ups of 5 and 10 become 0.5 and 1. A GPU with a batch of 128 becomes a worker with one of 16,
so that 32 of them take a comparable share of an epoch at once. Workers are processes as far as there are cores; for
quality the others are emulated, for throughput they are predicted.
"""

from __future__ import annotations

from typing import Any

import msgspec

from hora.lab.quality.factors import FACTORS, Factor, Recipe
from hora.lab.study.published import QUALITY, Quality

__all__ = ["FULL", "LR", "QUICK", "Scale", "quality_runs", "recipe", "speed_batches"]

EPOCHS = 9
BATCH = 16  # of a worker, for the study's 128
LR = 0.005  # of one worker, for its 0.05


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """How much of it."""

    name: str
    samples: int  # to train on
    test: int
    seeds: tuple[int, ...]
    steps: int  # timed, of a run of throughput
    batches: tuple[int, ...]  # of tf_cnn_benchmarks' form
    gpus: tuple[int, ...]  # whose experiments of quality are run


QUICK = Scale(name="quick", samples=10_000, test=2_000, seeds=(1,), steps=40, batches=(32, 128), gpus=(1, 32))
FULL = Scale(
    name="whole",
    samples=40_000,
    test=10_000,
    seeds=(1, 2),
    steps=200,
    batches=(32, 64, 128),
    gpus=(1, 2, 8, 16, 24, 32),
)


def recipe(experiment: int, data: str) -> Recipe:
    """How one worker trains. Experiment 4 has twice the rate and a decay of its own, as in the study.

    >>> four, five = recipe(4, "d").given, recipe(5, "d").given
    >>> five["decay"], four["decay"], four["lr"] / five["lr"]
    ('3,6,8', 'every:3', 2.0)
    """
    given: dict[str, Any] = {
        "network": "horovod", "momentum": 0.9, "batch": BATCH, "base_batch": BATCH, "data": data,
        "lr": 2 * LR if experiment == 4 else LR, "decay": "every:3" if experiment == 4 else "3,6,8",
    }  # fmt: skip
    return Recipe.of("mnist", given, EPOCHS)


def quality_runs(scale: Scale) -> list[tuple[Quality, Factor, int]]:
    """(experiment, factor, workers) of all rows.

    >>> [(quality.experiment, workers) for quality, _, workers in quality_runs(QUICK)]
    [(4, 1), (4, 32), (5, 1), (5, 32), (6, 32), (7, 32), (8, 32), (9, 32)]
    """
    return [
        (quality, FACTORS[quality.factor], workers)
        for quality in QUALITY
        for workers in quality.gpus
        if workers in scale.gpus
    ]


def speed_batches(scale: Scale, framework: str) -> tuple[int, ...]:
    """
    >>> speed_batches(QUICK, "horovod+tensorflow"), speed_batches(QUICK, "pytorch")
    ((32, 128), (128,))
    """
    return scale.batches if framework == "horovod+tensorflow" else (128,)
