"""Training in PyTorch, for `hora bench train`: beside Hora also DDP, and Horovod if it is installed.

Between hosts Hora and DDP come once more, sending bfloat16: ``Compression.bf16``, and DDP tuned with torch's own hook.
DDP refuses that hook by its name unless NCCL carries it, though Gloo sums bfloat16 too: it has another name here.
"""

from __future__ import annotations

import importlib
import statistics
import time
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

import hora.torch as hvd
from hora.bench.contenders import TimedTask
from hora.bench.link import Profile
from hora.bench.models import SPECS, Batch, TorchNetwork, batches
from hora.bench.plan import LEARNING_RATE, MOMENTUM

__all__ = ["Trainee", "check", "make", "profile", "trainee", "version"]

PROFILED_STEPS = 5
ROUNDED = 0.02  # how far a step with rounded gradients may be from that with exact ones, as a share of it


def version() -> str:
    """What is measured."""
    return f"torch {torch.__version__}"


def make(key: str, name: str, seed: int, rank: int) -> TimedTask:
    """A contender's step as a task, found to lead where the mean gradient leads."""
    spec = SPECS[name]
    made = trainee(key, spec, seed)
    check(key, made, next(batches(spec, seed * 1000 + rank)), seed)
    return made.task(batches(spec, seed * 1000 + rank))


class Trainee(NamedTuple):
    """One contender's copy of the network. ``forward`` is the network, or what the contender wrapped it in."""

    spec: TorchNetwork
    network: nn.Module
    forward: nn.Module
    optimizer: torch.optim.Optimizer
    communicates: bool = True

    def step(self, batch: Batch) -> None:
        self.optimizer.zero_grad()
        self.spec.loss(self.forward(batch[0]), batch[1]).backward()
        self.optimizer.step()

    def task(self, data: Iterator[Batch]) -> TimedTask:
        return TimedTask([], lambda: self.step(next(data)), sums=False)


def _sgd(network: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(network.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)


def trainee(key: str, spec: TorchNetwork, seed: int) -> Trainee:
    """A fresh network for that contender, equal on all ranks."""
    torch.manual_seed(seed)
    network = spec.make()
    match key:
        case "limit":
            return Trainee(spec, network, network, _sgd(network), communicates=False)
        case "hora" | "hora_bf16" | "horovod":
            library: Any = importlib.import_module("horovod.torch") if key == "horovod" else hvd
            options = {"compression": hvd.Compression.bf16} if key == "hora_bf16" else {}
            optimizer = library.DistributedOptimizer(
                _sgd(network), named_parameters=network.named_parameters(), **options
            )
            library.broadcast_parameters(network.state_dict(), root_rank=0)
            return Trainee(spec, network, network, optimizer)
        case "ddp":
            return Trainee(spec, network, nn.parallel.DistributedDataParallel(network), _sgd(network))
        case "ddp_tuned" | "ddp_bf16":
            with warnings.catch_warnings():  # newer releases rename the option
                warnings.simplefilter("ignore", FutureWarning)
                wrapped = nn.parallel.DistributedDataParallel(
                    network, broadcast_buffers=False, gradient_as_bucket_view=True
                )
            if key == "ddp_bf16":
                hooks: Any = importlib.import_module("torch.distributed.algorithms.ddp_comm_hooks.default_hooks")
                wrapped.register_comm_hook(None, lambda state, bucket: hooks.bf16_compress_hook(state, bucket))
            return Trainee(spec, network, wrapped, _sgd(network))
        case _:
            raise ValueError(f"no contender is called {key!r}")


def check(key: str, made: Trainee, batch: Batch, seed: int) -> None:
    """Refuse to time a contender whose step is not that of the mean gradient."""
    if not made.communicates:
        return
    by_hand = made.spec.make()  # not a deep copy, which might bring the contender's hooks along
    by_hand.load_state_dict(made.network.state_dict())
    before = [parameter.detach().clone() for parameter in by_hand.parameters()]
    optimizer = _sgd(by_hand)
    torch.manual_seed(seed + hvd.rank())  # for dropout
    made.spec.loss(by_hand(batch[0]), batch[1]).backward()
    for name, parameter in by_hand.named_parameters():
        assert parameter.grad is not None
        hvd.allreduce_(parameter.grad, name=f"bench.by_hand.{name}", op=hvd.Average)
    optimizer.step()
    torch.manual_seed(seed + hvd.rank())
    made.step(batch)
    pairs = list(zip(by_hand.named_parameters(), made.network.parameters(), before, strict=True))
    if key.endswith("bf16"):
        with torch.no_grad():
            length = sum(float((expected - old).square().sum()) for (_, expected), _, old in pairs) ** 0.5
            apart = sum(float((expected - found).square().sum()) for (_, expected), found, _ in pairs) ** 0.5
        if apart > ROUNDED * length:
            raise AssertionError(
                f"{key} trained wrongly on rank {hvd.rank()}: its step is {apart / length:.1%} away from one with the "
                "mean gradient. Its time would mean nothing."
            )
        return
    for (name, expected), found, _ in pairs:
        if not torch.allclose(found, expected, rtol=1e-4, atol=1e-6):
            furthest = (found - expected).abs().max().item()
            raise AssertionError(
                f"{key} trained wrongly on rank {hvd.rank()}: after one step {name} is up to {furthest:.3g} away from a"
                " step with the mean gradient. Its time would mean nothing."
            )


def profile(name: str, seed: int, rank: int) -> Profile:
    """When the gradients of a step are there, if nothing is sent: the median of a few steps; called by all ranks."""
    spec = SPECS[name]
    made, data = trainee("limit", spec, seed), batches(spec, seed * 1000 + rank)
    order: list[tuple[float, int]] = []

    def note(parameter: torch.Tensor) -> None:
        order.append((time.perf_counter(), parameter.numel() * parameter.element_size()))

    for parameter in made.network.parameters():
        parameter.register_post_accumulate_grad_hook(note)
    steps: list[Profile] = []
    for _ in range(1 + PROFILED_STEPS):
        order.clear()
        hvd.barrier()
        start = time.perf_counter()
        made.step(next(data))
        end = time.perf_counter()
        steps.append(Profile(tuple((when - start, count) for when, count in order), end - order[-1][0]))
    kept = steps[1:]
    ready = [
        (statistics.median(step.ready[i][0] for step in kept), count) for i, (_, count) in enumerate(kept[0].ready)
    ]
    return Profile(tuple(ready), statistics.median(step.rest_s for step in kept))
