"""The live line of optimizers: who is slowest, and that nobody waits for it."""

from __future__ import annotations

import io
from types import ModuleType

import torch
from tests.multi.bodies.optimizer import network, sgd, train
from tests.multi.body import body

from hora.torch.summary import Summary


class Clock:
    """Every look takes three seconds, so that figures are due after every step or two."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 3.0
        return self.now


@body()
def uneven_steps_never_wait(hvd: ModuleType, rank: int, size: int) -> None:
    """Ranks join after different numbers of steps, again and again, so that they count them differently."""
    model = network()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    stream = io.StringIO()
    summary = Summary(stream=stream, clock=Clock())
    if size > 1:
        optimizer._reducer._summary = summary
    for epoch in range(4):
        train(optimizer, model, [rank], steps=3 + (rank + epoch) % size)
        hvd.join()
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    if size > 1:
        assert summary.figures().steps == sum(3 + (rank + epoch) % size for epoch in range(4))
        assert ("step" in stream.getvalue()) == (rank == 0)


@body(sizes=(2, 3))
def all_hear_it_in_the_same_step(hvd: ModuleType, rank: int, size: int) -> None:
    """Also without buckets: where all gradients travel alone, and where there are none yet."""
    for compression in (hvd.Compression.none, hvd.Compression.top_k(0.5)):
        weight = torch.nn.Parameter(torch.ones(10))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1), compression=compression)
        gathered = []
        summary = Summary(stream=io.StringIO(), clock=Clock())
        summary._gather = lambda gathered=gathered, summary=summary: gathered.append(summary._count)  # type: ignore
        optimizer._reducer._summary = summary
        for _ in range(rank):  # counted by this rank alone
            summary.end_step(0.0, 0)
        for _ in range(6):
            optimizer.zero_grad()
            weight.sum().backward()
            optimizer.step()
        assert [count - rank for count in gathered] == list(range(3, 7)), gathered
