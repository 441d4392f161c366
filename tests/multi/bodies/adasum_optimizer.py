"""The Adasum optimizer against a simulation of all ranks in one process."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import torch
from tests.multi.body import body
from tests.multi.data import check, process_sets, raises, tensor

from hora.torch.adasum import DistributedAdasumOptimizer
from hora.transport.arithmetic import adasum
from hora.types import DType

SIZES = (1, 2, 4)
Make = Callable[[Any], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
}


def model(dtype: torch.dtype = torch.float64) -> torch.nn.Module:
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3)).to(dtype)


def loss(net: torch.nn.Module, rank: int, step: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    out: torch.Tensor = net(tensor(rank, (6, 5), dtype, f"x{step}"))
    return (out - tensor(rank, (6, 3), dtype, f"y{step}")).pow(2).mean()


class Simulation:
    """All ranks' replicas, optimizers and Adasum in this process."""

    def __init__(self, ranks: list[int], make: Make, make_model: Callable[[], torch.nn.Module] = model) -> None:
        self.ranks = ranks
        self.models = {r: make_model() for r in ranks}
        self.optimizers = {r: make(self.models[r].parameters()) for r in ranks}

    def step(self, step: int, passes: int = 1, clip: float = 0.0) -> None:
        start = [p.detach().clone() for p in self.models[self.ranks[0]].parameters()]
        for r in self.ranks:
            self.optimizers[r].zero_grad()
            for turn in range(passes):
                loss(self.models[r], r, 10 * step + turn).backward()
            if clip:
                torch.nn.utils.clip_grad_norm_(self.models[r].parameters(), clip)
            self.optimizers[r].step()
        columns = zip(*(self.models[r].parameters() for r in self.ranks), strict=True)
        for before, column in zip(start, columns, strict=True):
            changes = [np.asarray((p.detach() - before).flatten()) for p in column]
            combined = torch.from_numpy(adasum(changes, DType.FLOAT64, 1, 1)).to(before.device).reshape(before.shape)
            for p in column:
                p.data.copy_(before + combined)


def compare(net: torch.nn.Module, simulation: Simulation, what: object) -> None:
    expected = simulation.models[simulation.ranks[0]].named_parameters()
    for (name, p), (_, q) in zip(net.named_parameters(), expected, strict=True):
        check(p, q.detach(), (what, name))


@body(sizes=SIZES)
def equals_a_simulation(hvd: ModuleType, rank: int, size: int) -> None:
    for name, make in OPTIMIZERS.items():
        for passes in (1, 2):
            net, simulation = model(), Simulation(list(range(size)), make)
            optimizer: Any = DistributedAdasumOptimizer(
                make(net.parameters()), net.named_parameters(), backward_passes_per_step=passes
            )
            for step in range(4):
                optimizer.zero_grad(set_to_none=step % 2 == 0)
                for turn in range(passes):
                    loss(net, rank, 10 * step + turn).backward()
                optimizer.step()
                simulation.step(step, passes)
                compare(net, simulation, (name, passes, step))
            own = simulation.optimizers[rank].state_dict()["state"]
            for index, state in optimizer.state_dict()["state"].items():
                for key, value in state.items():
                    if isinstance(value, torch.Tensor):
                        check(value, own[index][key], (name, key))


@body(sizes=SIZES)
def clipped(hvd: ModuleType, rank: int, size: int) -> None:
    """The recipe for other optimizers works here too; what is clipped is each rank's own gradient."""
    make = OPTIMIZERS["momentum"]
    net, simulation = model(), Simulation(list(range(size)), make)
    optimizer: Any = DistributedAdasumOptimizer(make(net.parameters()), net.named_parameters())
    for step in range(3):
        optimizer.zero_grad()
        loss(net, rank, 10 * step).backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        with optimizer.skip_synchronize():
            optimizer.step()
        simulation.step(step, clip=0.1)
        compare(net, simulation, step)


@body(sizes=SIZES)
def in_sixteen_bits(hvd: ModuleType, rank: int, size: int) -> None:
    """Compressed changes: close to the exact ones, and the same on all ranks."""
    make = OPTIMIZERS["SGD"]
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        net, simulation = model(), Simulation(list(range(size)), make)
        optimizer = DistributedAdasumOptimizer(make(net.parameters()), compression=compression)
        for step in range(2):
            optimizer.zero_grad()
            loss(net, rank, 10 * step).backward()
            optimizer.step()
            simulation.step(step)
        for p, q in zip(net.parameters(), simulation.models[0].parameters(), strict=True):
            assert torch.allclose(p, q, rtol=1e-2, atol=1e-2)
            for other in hvd.allgather(p.detach().reshape(1, -1)):
                assert torch.equal(other, p.detach().flatten())


@body(sizes=SIZES)
def gradients_on_some_ranks_only(hvd: ModuleType, rank: int, size: int) -> None:
    used, unused = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2))
    optimizer = DistributedAdasumOptimizer(torch.optim.SGD([used, unused], lr=0.5))
    (used.sum() + (unused.sum() if rank == size - 1 else 0)).backward()
    optimizer.step()
    check(used, torch.full((3,), 0.5))
    check(unused, torch.full((2,), 0.5))  # the others' change is zero, which Adasum leaves alone


@body(sizes=SIZES)
def a_closure_a_scheduler_and_hooks(hvd: ModuleType, rank: int, size: int) -> None:
    make = OPTIMIZERS["momentum"]
    net, calls = model(), []
    plain = make(net.parameters())
    plain.register_step_post_hook(lambda *_: calls.append([p.detach().clone() for p in net.parameters()]))
    early = torch.optim.lr_scheduler.StepLR(plain, 1, 0.5)
    optimizer = DistributedAdasumOptimizer(plain)
    late = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    assert isinstance(optimizer, torch.optim.SGD) and type(optimizer).__name__ == "SGD"
    assert optimizer.param_groups is plain.param_groups and optimizer.state is plain.state

    def closure() -> float:
        optimizer.zero_grad()
        value = loss(net, rank, 0)
        value.backward()
        return float(value.detach())

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert optimizer.step(closure) > 0
        early.step()
        late.step()
    assert len(calls) == 1 and all(torch.equal(p, q) for p, q in zip(net.parameters(), calls[0], strict=True))
    assert optimizer.param_groups[0]["lr"] == 0.1 / 4
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    optimizer.step(closure)
    assert len(calls) == 2
    plain.load_state_dict(optimizer.state_dict())  # what was saved loads without Hora


@body(sizes=SIZES)
def overflow_is_agreed_on(hvd: ModuleType, rank: int, size: int) -> None:
    """GradScaler: where one rank's gradients are not finite, no rank steps."""
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = DistributedAdasumOptimizer(torch.optim.SGD([weight], lr=0.5))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for step, expected in enumerate((1.0, 0.5)):
        optimizer.zero_grad()
        factor = float("inf") if step == 0 and rank == size - 1 else 1.0
        scaler.scale(weight.sum() * factor).backward()
        if step:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        check(weight, torch.full((2,), expected))
    optimizer.zero_grad()
    scaler.scale(weight.sum()).backward()
    scaler.step(optimizer)
    check(weight, torch.zeros(2))


@body()
def sets_and_numbers_of_ranks(hvd: ModuleType, rank: int, size: int) -> None:
    make = OPTIMIZERS["Adam"]
    with process_sets(hvd, size) as known:
        for process_set in known:
            count = process_set.size()
            net = model()
            if count & (count - 1):
                with raises(ValueError, f"{count} ranks", "1, 2, 4, 8"):
                    DistributedAdasumOptimizer(make(net.parameters()), process_set=process_set)
                continue
            optimizer = DistributedAdasumOptimizer(make(net.parameters()), process_set=process_set)
            simulation = Simulation(process_set.ranks if process_set.included() else [rank], make)
            for step in range(2):
                optimizer.zero_grad()
                loss(net, rank, 10 * step).backward()
                optimizer.step()
                simulation.step(step)
            compare(net, simulation, process_set)


@body(sizes=(2, 4))
def a_failed_step_changes_nothing(hvd: ModuleType, rank: int, size: int) -> None:
    weight = torch.nn.Parameter(torch.ones(2 + rank))  # which is a mistake
    optimizer = DistributedAdasumOptimizer(torch.optim.SGD([weight], lr=0.5))
    weight.sum().backward()
    with raises(hvd.MismatchError, "adasum_optimizer"):
        optimizer.step()
    check(weight, torch.ones(2 + rank))


@body(sizes=(2,))
def through_distributed_optimizer(hvd: ModuleType, rank: int, size: int) -> None:
    make = OPTIMIZERS["momentum"]
    net, simulation = model(), Simulation(list(range(size)), make)
    optimizer = hvd.DistributedOptimizer(make(net.parameters()), net.named_parameters(), op=hvd.Adasum)
    loss(net, rank, 0).backward()
    optimizer.step()
    simulation.step(0)
    compare(net, simulation, "DistributedOptimizer")
