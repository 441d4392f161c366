"""What the workers of the cluster tests do. Every line of JSON they print is a *word* that a test reads.

``python worker.py right``: where am I, are sums right, does training give what one process gives. One word, at the end.
``python worker.py loop MB``: reduces until it fails. A word when it is under way, and one that says how it failed.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.light import light_torch

    light_torch()

import torch
from torch import nn

import hora.torch as hvd

SIZES = (1, 1000, 1_000_001)  # elements: one message, a few, and more than a pipeline's chunk
STEPS, ROWS = 8, 24


def say(**word: object) -> None:
    os.write(1, json.dumps(word).encode() + b"\n")


def numbers(rank: int, count: int) -> np.ndarray:  # type: ignore[type-arg]
    """Whole numbers, so that their sum is exact in whatever order it is taken."""
    return np.random.default_rng(1000 + rank).integers(-1000, 1000, count).astype("float32")


def collectives_are_right() -> bool:
    rank, size = hvd.rank(), hvd.size()
    right = True
    for count in SIZES:
        mine = torch.from_numpy(numbers(rank, count))
        total = hvd.allreduce(mine, op=hvd.Sum, name=f"sum.{count}").numpy()
        right &= bool(np.array_equal(total, sum(numbers(r, count) for r in range(size))))
    gathered = hvd.allgather(torch.full((rank + 1, 2), float(rank)), name="gather").numpy()
    right &= bool(np.array_equal(gathered, np.repeat(np.arange(size), np.arange(1, size + 1))[:, None].repeat(2, 1)))
    for root in range(size):
        sent = hvd.broadcast(torch.full((5,), float(rank)), root_rank=root, name=f"broadcast.{root}")
        right &= bool((sent == root).all())
    return right


def trained_apart_from_alone() -> float:
    """The largest difference to the same training in one process, at the whole batch."""

    def train(distributed: bool) -> list[torch.Tensor]:
        torch.manual_seed(7)
        model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)).double()
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        rank, size = (hvd.rank(), hvd.size()) if distributed else (0, 1)
        if distributed:
            if rank != 0:
                for parameter in model.parameters():
                    nn.init.zeros_(parameter)
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
            optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        for step in range(STEPS):
            batch = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
            part = batch[rank * ROWS // size : (rank + 1) * ROWS // size]
            optimizer.zero_grad()
            nn.functional.mse_loss(model(part), part.square().sum(1, keepdim=True)).backward()
            optimizer.step()
        return [parameter.detach() for parameter in model.parameters()]

    pairs = zip(train(distributed=True), train(distributed=False), strict=True)
    return max(float((one - other).abs().max()) for one, other in pairs)


def right() -> None:
    hvd.init()
    place = {
        name: getattr(hvd, name)() for name in ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
    }
    say(**place, host=socket.gethostname(), right=collectives_are_right(), apart=trained_apart_from_alone())
    hvd.shutdown()


def loop(megabytes: float) -> None:
    hvd.init()
    tensor = torch.ones(int(megabytes * 1e6 / 4))
    try:
        hvd.allreduce_(tensor, name="loop")
        say(ready=hvd.rank(), pid=os.getpid(), host=socket.gethostname(), job=os.environ.get("HORA_JOB", ""))
        while True:
            hvd.allreduce_(tensor, name="loop")
            assert tensor[0] == 1 and tensor[-1] == 1, "a wrong average"
    except hvd.HorovodInternalError as error:
        say(rank=hvd.rank(), raised=type(error).__name__, text=str(error), at=time.monotonic())
        sys.exit(3)


if __name__ == "__main__":
    right() if sys.argv[1] == "right" else loop(float(sys.argv[2]))
