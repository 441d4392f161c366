"""The two published ways to measure and tell training speed, to the letter: tools parse these lines.

Horovod's times groups of batches and gives a confidence interval over them. tf_cnn_benchmarks times every batch and
gives the error of the mean and the jitter; its total counts all workers. Neither counts the batches of its warm-up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

__all__ = [
    "TF_STARTED",
    "WorkerSpeed",
    "horovod_header",
    "horovod_iteration",
    "horovod_total",
    "mean_and_interval",
    "speed",
    "tf_header",
    "tf_line",
    "tf_total",
]

DASHES = "-" * 64
TF_STARTED = ("Done warm up", "Step\tImg/sec\ttotal_loss")


# ---- Horovod's pytorch_synthetic_benchmark.py ----


def mean_and_interval(speeds: Sequence[float]) -> tuple[float, float]:
    """The mean, and 1.96 deviations.

    >>> mean_and_interval([90.0, 110.0])
    (100.0, 19.6)
    """
    return float(np.mean(speeds)), 1.96 * float(np.std(speeds))


def horovod_header(model: str, batch: int, workers: int, device: str) -> list[str]:
    """
    >>> horovod_header("resnet50", 32, 4, "GPU")
    ['Model: resnet50', 'Batch size: 32', 'Number of GPUs: 4', 'Running warmup...']
    """
    return [f"Model: {model}", f"Batch size: {batch}", f"Number of {device}s: {workers}", "Running warmup..."]


def horovod_iteration(number: int, speed: float, device: str) -> str:
    """
    >>> horovod_iteration(0, 201.34, "GPU")
    'Iter #0: 201.3 img/sec per GPU'
    """
    return f"Iter #{number}: {speed:.1f} img/sec per {device}"


def horovod_total(speeds: Sequence[float], workers: int, device: str) -> list[str]:
    """
    >>> horovod_total([90.0, 110.0], 4, "GPU")
    ['Img/sec per GPU: 100.0 +-19.6', 'Total img/sec on 4 GPU(s): 400.0 +-78.4']
    """
    mean, interval = mean_and_interval(speeds)
    return [
        f"Img/sec per {device}: {mean:.1f} +-{interval:.1f}",
        f"Total img/sec on {workers} {device}(s): {workers * mean:.1f} +-{workers * interval:.1f}",
    ]


# ---- tf_cnn_benchmarks ----


class WorkerSpeed(NamedTuple):
    """The speed of one worker: mean, standard error and jitter, in samples a second."""

    mean: float
    uncertainty: float
    jitter: float


def speed(batch: int, seconds: Sequence[float]) -> WorkerSpeed:
    """The speed of batches that took that many seconds each.

    >>> found = speed(10, [0.1, 0.1, 0.2])
    >>> round(found.mean, 2), round(found.uncertainty, 2), found.jitter
    (75.0, 13.61, 0.0)
    """
    speeds = batch / np.asarray(seconds)
    return WorkerSpeed(
        mean=batch / float(np.mean(seconds)),
        uncertainty=float(np.std(speeds)) / math.sqrt(len(speeds)),
        jitter=1.4826 * float(np.median(np.abs(speeds - np.median(speeds)))),
    )


def tf_header(
    *, version: str, model: str, dataset: str, batch: int, workers: int, batches: int, epochs: float, device: str
) -> list[str]:
    """The lines before anything runs. The first line names what computes, which is not TensorFlow here.

    >>> for line in tf_header(version="2.13.0", model="resnet50", dataset="imagenet", batch=64, workers=2, batches=100,
    ...                       epochs=0.01, device="cpu"):
    ...     print(line)
    PyTorch:     2.13.0
    Model:       resnet50
    Dataset:     imagenet (synthetic)
    Mode:        BenchmarkMode.TRAIN
    SingleSess:  False
    Batch size:  128 global
                 64.0 per device
    Num batches: 100
    Num epochs:  0.01
    Devices:     ['horovod/cpu:0', 'horovod/cpu:1']
    Data format: NCHW
    Optimizer:   sgd
    Variables:   horovod
    ==========
    Generating training model
    Initializing graph
    Running warm up
    """
    return [
        f"PyTorch:     {version}",
        f"Model:       {model}",
        f"Dataset:     {dataset} (synthetic)",
        "Mode:        BenchmarkMode.TRAIN",
        "SingleSess:  False",
        f"Batch size:  {batch * workers} global",
        f"             {float(batch)} per device",
        f"Num batches: {batches}",
        f"Num epochs:  {epochs:.2f}",
        f"Devices:     {[f'horovod/{device}:{worker}' for worker in range(workers)]}",
        "Data format: NCHW",
        "Optimizer:   sgd",
        "Variables:   horovod",
        "==========",
        "Generating training model",
        "Initializing graph",
        "Running warm up",
    ]


def tf_line(step: int, found: WorkerSpeed, loss: float) -> str:
    r"""
    >>> tf_line(1, WorkerSpeed(208.7, 0.0, 0.0), 8.1234)
    '1\timages/sec: 208.7 +/- 0.0 (jitter = 0.0)\t8.123'
    """
    return f"{step}\timages/sec: {found.mean:.1f} +/- {found.uncertainty:.1f} (jitter = {found.jitter:.1f})\t{loss:.3f}"


def tf_total(images_per_s: float) -> list[str]:
    """
    >>> tf_total(210.154)[1]
    'total images/sec: 210.15'
    """
    return [DASHES, f"total images/sec: {images_per_s:.2f}", DASHES]
