"""Training with and without communication, on the workers: what `hora bench train` times.

Every contender trains its own copy of the same network with the same kind of optimizer, the way its documentation says.
``limit`` does not communicate at all: the same processes training side by side, each for itself, which nobody can beat.
Before anything is timed, a step of each contender must lead to the same parameters as a step with gradients that were
averaged by hand. One turn is as many whole steps (forward, backward, optimizer) as fill it.
"""

from __future__ import annotations

import gc
import importlib
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

import hora.torch as hvd
from hora.errors import EnvironmentUnfit
from hora.lab.bench.contenders import Task
from hora.lab.bench.models import SPECS, Batch, Spec, batches
from hora.lab.bench.plan import PROGRESS, TRAIN_LABELS, TRAININGS, Plan, RankReport
from hora.lab.bench.rounds import take_turns

__all__ = ["Trainee", "check", "trainee", "work"]

LEARNING_RATE, MOMENTUM = 1e-3, 0.9
PEER_TIMEOUT_S = 120.0


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


def work(plan: Plan, folder: Path) -> RankReport:
    """Measure everything in the plan, on this rank."""
    report = RankReport(rank=hvd.rank(), seconds={}, calls={}, versions={})
    end = _start_peers(plan, folder, report)
    for number, name in enumerate(plan.models):
        spec = SPECS[name]
        if hvd.rank() == 0:
            print(f"{PROGRESS}{number + 1}/{len(plan.models)} {TRAININGS[name].title}", flush=True)
        trainees = {key: trainee(key, spec, plan.seed) for key in report.versions}
        for key, made in trainees.items():
            check(key, made, next(batches(spec, _data_seed(plan))), plan.seed)
        tasks = {key: made.task(batches(spec, _data_seed(plan))) for key, made in trainees.items()}
        timings = take_turns(tasks, plan.rounds, plan.round_s)
        report.seconds[name] = {key: timing.seconds for key, timing in timings.items()}
        report.calls[name] = {key: timing.calls for key, timing in timings.items()}
        hvd.barrier()
        del trainees, tasks, timings, made
        gc.collect()  # a network and its optimizer refer to each other; the next row wants the memory
    end()
    return report


def _data_seed(plan: Plan) -> int:
    return plan.seed * 1000 + hvd.rank()


def _start_peers(plan: Plan, folder: Path, report: RankReport) -> Callable[[], None]:
    """Start the libraries, note their versions, return what ends them; all ranks do it in the same order."""
    ends: list[Callable[[], object]] = []
    for key in plan.contenders:
        try:
            report.versions[key] = _start(key, folder, ends)
        except EnvironmentUnfit as reason:  # the same on every rank: they share a host and an installation
            report.notes.append(f"{TRAIN_LABELS[key]} was not measured: {reason}")

    def end() -> None:
        for finish in ends:
            finish()

    return end


def _start(key: str, folder: Path, ends: list[Callable[[], object]]) -> str:
    match key:
        case "ddp" | "ddp_tuned":
            dist: Any = importlib.import_module("torch.distributed")
            if not dist.is_initialized():
                store = dist.FileStore(str(folder / "gloo-store"), hvd.size())
                patience = timedelta(seconds=PEER_TIMEOUT_S)
                dist.init_process_group("gloo", store=store, rank=hvd.rank(), world_size=hvd.size(), timeout=patience)
                ends.append(dist.destroy_process_group)
            return f"on Gloo, of torch {torch.__version__}"
        case "horovod":
            horovod: Any = importlib.import_module("horovod.torch")
            horovod.init()
            world = (horovod.rank(), horovod.size())
            if world != (hvd.rank(), hvd.size()):
                raise EnvironmentUnfit(f"its world is {world}, and Hora's is {(hvd.rank(), hvd.size())}")
            ends.append(horovod.shutdown)
            return str(importlib.import_module("horovod").__version__)
        case "hora":
            return str(importlib.import_module("hora").__version__)
        case _:
            return f"torch {torch.__version__}"
