"""A worker with a planted bottleneck: ``python planted.py slow-rank | tiny | large``.

What it plants is large beside what a busy machine adds: 60 ms of sleep, 150 blocking operations, 48 MB.
"""

from __future__ import annotations

import sys
import time

import torch

import hora.torch as hvd

STEPS = 6


def slow_rank(step: int) -> None:
    if hvd.rank() == 1:
        time.sleep(0.06)  # the bottleneck itself, not a way to synchronise
    handles = [hvd.allreduce_async_(torch.ones(1000), name=f"gradient.{i}") for i in range(10)]
    for handle in handles:
        hvd.synchronize(handle)


def tiny(step: int) -> None:
    for i in range(150):
        hvd.allreduce_(torch.ones(100), name=f"gradient.{i}")


def large(step: int) -> None:
    hvd.allreduce_(BIG, name="embedding")


if __name__ == "__main__":
    torch.set_num_threads(1)
    hvd.init()
    BIG = torch.ones(12 << 20) if sys.argv[1] == "large" else torch.ones(1)
    for step in range(STEPS):
        {"slow-rank": slow_rank, "tiny": tiny, "large": large}[sys.argv[1]](step)
    hvd.shutdown()
