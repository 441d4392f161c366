"""Training in PyTorch, for `hora bench train`: beside Hora also DDP, and Horovod if it is installed."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

import hora.torch as hvd
from hora.lab.bench.contenders import Task
from hora.lab.bench.models import SPECS, Batch, Spec, batches
from hora.lab.bench.plan import LEARNING_RATE, MOMENTUM

__all__ = ["Trainee", "check", "make", "trainee", "version"]


def version() -> str:
    """What is measured."""
    return f"torch {torch.__version__}"


def make(key: str, name: str, seed: int, rank: int) -> Task:
    """A contender's step as a task, found to lead where the mean gradient leads."""
    spec = SPECS[name]
    made = trainee(key, spec, seed)
    check(key, made, next(batches(spec, seed * 1000 + rank)), seed)
    return made.task(batches(spec, seed * 1000 + rank))


class Trainee(NamedTuple):
    """One contender's copy of the network. ``forward`` is the network, or what the contender wrapped it in."""

    spec: Spec
    network: nn.Module
    forward: nn.Module
    optimizer: torch.optim.Optimizer
    communicates: bool = True

    def step(self, batch: Batch) -> None:
        self.optimizer.zero_grad()
        self.spec.loss(self.forward(batch[0]), batch[1]).backward()
        self.optimizer.step()

    def task(self, data: Iterator[Batch]) -> Task:
        return Task([], lambda: self.step(next(data)), sums=False)


def _sgd(network: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(network.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)


def trainee(key: str, spec: Spec, seed: int) -> Trainee:
    """A fresh network for that contender, equal on all ranks."""
    torch.manual_seed(seed)
    network = spec.make()
    match key:
        case "limit":
            return Trainee(spec, network, network, _sgd(network), communicates=False)
        case "hora" | "horovod":
            library: Any = hvd if key == "hora" else importlib.import_module("horovod.torch")
            optimizer = library.DistributedOptimizer(_sgd(network), named_parameters=network.named_parameters())
            library.broadcast_parameters(network.state_dict(), root_rank=0)
            return Trainee(spec, network, network, optimizer)
        case "ddp":
            return Trainee(spec, network, nn.parallel.DistributedDataParallel(network), _sgd(network))
        case "ddp_tuned":
            with warnings.catch_warnings():  # newer releases rename the option
                warnings.simplefilter("ignore", FutureWarning)
                wrapped = nn.parallel.DistributedDataParallel(
                    network, broadcast_buffers=False, gradient_as_bucket_view=True
                )
            return Trainee(spec, network, wrapped, _sgd(network))
        case _:
            raise ValueError(f"no contender is called {key!r}")


def check(key: str, made: Trainee, batch: Batch, seed: int) -> None:
    """Refuse to time a contender whose step is not that of the mean gradient."""
    if not made.communicates:
        return
    by_hand = made.spec.make()  # not a deep copy, which might bring the contender's hooks along
    by_hand.load_state_dict(made.network.state_dict())
    optimizer = _sgd(by_hand)
    torch.manual_seed(seed + hvd.rank())  # for dropout
    made.spec.loss(by_hand(batch[0]), batch[1]).backward()
    for name, parameter in by_hand.named_parameters():
        assert parameter.grad is not None
        hvd.allreduce_(parameter.grad, name=f"bench.by_hand.{name}", op=hvd.Average)
    optimizer.step()
    torch.manual_seed(seed + hvd.rank())
    made.step(batch)
    for (name, expected), found in zip(by_hand.named_parameters(), made.network.parameters(), strict=True):
        if not torch.allclose(found, expected, rtol=1e-4, atol=1e-6):
            furthest = (found - expected).abs().max().item()
            raise AssertionError(
                f"{key} trained wrongly on rank {hvd.rank()}: after one step {name} is up to {furthest:.3g} away from a"
                " step with the mean gradient. Its time would mean nothing."
            )
