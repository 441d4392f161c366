"""DistributedOptimizer with guards: what is not finite, what has diverged, and that ranks stay in step about it."""

from __future__ import annotations

from types import ModuleType

import torch
from tests.multi.bodies.optimizer import batch, loss_of, network, same, sgd, train
from tests.multi.body import body
from tests.multi.data import raises

from hora.torch.guard import DivergenceError, NonFiniteError


@body(sizes=(2, 3, 4))
def steps_are_left_out_on_all_ranks(hvd: ModuleType, rank: int, size: int) -> None:
    """One rank has a nan, in the first step and in a later one: nobody steps, and the next step is fine again."""
    for policy, compression in (("skip", hvd.Compression.none), ("skip", hvd.Compression.fp16), ("stop", None)):
        model, reference = network(), network()
        optimizer = hvd.DistributedOptimizer(
            sgd(model.parameters()), model.named_parameters(), compression=compression or hvd.Compression.none
        )
        optimizer._reducer._guard.policy = policy
        plain = sgd(reference.parameters())
        for step in range(6):
            optimizer.zero_grad()
            x, y = batch(step, [rank])
            poisoned = step in (0, 3)
            if poisoned and rank == size - 1:
                x[0, 0, 0, 0] = torch.nan
            loss_of(model, (x, y)).backward()
            if poisoned and policy == "stop":
                with raises(NonFiniteError, f"rank {size - 1}", "0.weight"):
                    optimizer.step()
                continue
            optimizer.step()
            if not poisoned:
                plain.zero_grad()
                loss_of(reference, batch(step, range(size))).backward()
                plain.step()
        same(model, reference, policy, 1e-5 if compression is not hvd.Compression.fp16 else 0.05)


@body(sizes=(2, 3, 4))
def diverged_replicas_are_noticed(hvd: ModuleType, rank: int, size: int) -> None:
    """After the first step, and every so many: also by ranks that have counted differently."""
    model = network()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    guard = optimizer._reducer._guard
    guard.every, guard._strict = 4, True
    train(optimizer, model, [rank], steps=rank + 1)
    hvd.join()
    hvd.broadcast_parameters(model.state_dict(), root_rank=size - 1)
    hvd.broadcast_optimizer_state(optimizer, root_rank=size - 1)
    train(optimizer, model, [rank], steps=9)
    with torch.no_grad():
        if rank == 1:
            model[3].weight[0, 0] += 1e-3
    with raises(DivergenceError, "3.weight"):
        train(optimizer, model, [rank], steps=4)
