"""What a step costs when workers wait for each other, and how much of that is communication.

    hora run -np 2 python bench/synchrony.py

trains TensorFlow's CNN for MNIST with Adam, batch 100, on random images, in three ways by turns: every process for
itself; for itself, but all meet before ``optimizer.step()``; and with Hora. What the second takes longer than the first
is the cost of waiting for the slowest, and of using memory all at the same moment.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch
from torch.nn import functional as F

import hora.torch as hvd
from hora.bench.contenders import TimedTask
from hora.bench.rounds import take_turns
from hora.workloads.mnist.model import network

BATCH = 100
ROUND_S = 2.0


def training(key: str) -> Callable[[], None]:
    """A step of that way to train."""
    model = network("tensorflow")
    optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    if key == "hora":
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    images, labels = torch.randn(BATCH, 1, 28, 28), torch.randint(0, 10, (BATCH,))

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        if key == "meeting":
            hvd.barrier()
        optimizer.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    hvd.init()
    torch.set_num_threads(1)
    tasks = {key: TimedTask([], training(key), sums=False) for key in ("alone", "meeting", "hora")}
    timings = take_turns(tasks, args.rounds, ROUND_S)
    ranks = hvd.allgather_object({key: timing.seconds for key, timing in timings.items()})
    slowest = {key: list(map(max, *(rank[key] for rank in ranks))) for key in tasks}
    if hvd.rank() == 0:
        for key, seconds in slowest.items():
            share = statistics.median(first / own for first, own in zip(slowest["alone"], seconds, strict=True))
            print(f"{key:8} {1e3 * statistics.median(seconds):6.1f} ms a step, {share:.1%} of the speed alone")


if __name__ == "__main__":
    main()
