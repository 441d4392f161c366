"""DistributedOptimizer: many workers at batch b do what one worker does at batch n·b, parameter by parameter."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import torch
from tests.light import whole_torch
from tests.multi.body import body
from tests.multi.data import process_sets

Batch = tuple[torch.Tensor, torch.Tensor]
Make = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]

BATCH, STEPS = 4, 5


def network(seed: int = 0) -> torch.nn.Sequential:
    """Several layers of several types: a convolution in channels_last, a frozen layer, a float64 head."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(2, 6, 3),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(6 * 3 * 3, 10),
        torch.nn.Tanh(),
        torch.nn.Linear(10, 10),
        Double(),
        torch.nn.Linear(10, 3, dtype=torch.float64),
    )
    model[0].to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    model[5].requires_grad_(False)
    return model


class Double(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.double()


def batch(step: int, ranks: Iterable[int]) -> Batch:
    """The data of some ranks in one step."""
    parts = []
    for rank in ranks:
        random = torch.Generator().manual_seed(1000 * step + rank)
        x = torch.randn(BATCH, 2, 5, 5, generator=random)
        parts.append((x, torch.randn(BATCH, 3, generator=random, dtype=torch.float64)))
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def loss_of(model: torch.nn.Module, data: Batch) -> torch.Tensor:
    return torch.nn.functional.mse_loss(model(data[0]), data[1])


def same(model: torch.nn.Module, reference: torch.nn.Module, what: object = "", tolerance: float = 1e-5) -> None:
    for (name, ours), theirs in zip(model.named_parameters(), reference.parameters(), strict=True):
        difference = (ours - theirs).abs().max().item()
        assert difference <= tolerance, f"{what} {name}: differs by {difference}"


def sgd(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)


OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": sgd,
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, foreach=True),
}


def train(
    optimizer: torch.optim.Optimizer,
    model: torch.nn.Module,
    ranks: Iterable[int],
    passes: int = 1,
    scale: float = 1.0,
    set_to_none: bool = True,
    steps: int = STEPS,
) -> None:
    """Some steps on the data of some ranks."""
    ranks = list(ranks)
    for step in range(steps):
        optimizer.zero_grad(set_to_none=set_to_none)
        for i in range(passes):
            (scale * loss_of(model, batch(10 * step + i, ranks))).backward()
        optimizer.step()


def twins(
    hvd: ModuleType,
    rank: int,
    ranks: Iterable[int],
    make: Make = sgd,
    reference_scale: float = 1.0,
    tolerance: float = 1e-5,
    passes: int = 1,
    set_to_none: bool = True,
    what: object = "",
    **options: Any,
) -> None:
    """One worker on all the data, many with their shares: the same parameters come out."""
    model, reference = network(), network()
    train(make(reference.parameters()), reference, ranks, passes, reference_scale)
    if callable(options.get("groups")):
        options["groups"] = options["groups"](model)
    optimizer = hvd.DistributedOptimizer(
        make(model.parameters()), model.named_parameters(), backward_passes_per_step=passes, **options
    )
    train(optimizer, model, [rank], passes, set_to_none=set_to_none)
    same(model, reference, what or options, tolerance)


@body()
def equals_one_worker_with_all_the_data(hvd: ModuleType, rank: int, size: int) -> None:
    for name, make in OPTIMIZERS.items():
        for set_to_none in (True, False):
            twins(hvd, rank, range(size), make, set_to_none=set_to_none, what=name, tolerance=1e-4)


@body()
def rests_and_goes_on(hvd: ModuleType, rank: int, size: int) -> None:
    """Some steps together, some on one's own gradients alone, and some together again, with averages as before."""
    for passes in (1, 2):
        model, alone, averaged = network(), network(), network()
        optimizer = hvd.DistributedOptimizer(
            sgd(model.parameters()), model.named_parameters(), backward_passes_per_step=passes
        )
        by_hand, reference = sgd(alone.parameters()), sgd(averaged.parameters())
        train(optimizer, model, [rank], passes)
        train(reference, averaged, range(size), passes)
        same(model, averaged, f"before, {passes} passes", 1e-4)
        for ours, source in ((alone, model), (by_hand, optimizer)):
            ours.load_state_dict(copy.deepcopy(source.state_dict()))
        optimizer.rest(True)
        train(optimizer, model, [rank], passes, steps=3)
        train(by_hand, alone, [rank], passes, steps=3)
        same(model, alone, f"meanwhile, {passes} passes", 1e-6)
        optimizer.rest(False)
        for ours, source in ((model, averaged), (optimizer, reference)):
            ours.load_state_dict(copy.deepcopy(source.state_dict()))
        train(optimizer, model, [rank], passes)
        train(reference, averaged, range(size), passes)
        same(model, averaged, f"afterwards, {passes} passes", 1e-4)


@body()
def accumulation(hvd: ModuleType, rank: int, size: int) -> None:
    for passes, set_to_none in ((2, True), (3, False)):
        for make in (sgd, OPTIMIZERS["adam"]):
            twins(hvd, rank, range(size), make, passes=passes, set_to_none=set_to_none, tolerance=1e-4)


@body()
def groups_and_predivision(hvd: ModuleType, rank: int, size: int) -> None:
    def first_and_last(model: torch.nn.Sequential) -> list[list[torch.Tensor]]:
        return [[*model[0].parameters(), *model[7].parameters()], [model[3].weight]]

    for factor in (1.0, 2.0, float(size)):
        twins(hvd, rank, range(size), gradient_predivide_factor=factor)
        twins(hvd, rank, range(size), gradient_predivide_factor=factor, num_groups=2)
        twins(hvd, rank, range(size), gradient_predivide_factor=factor, groups=3)
        twins(hvd, rank, range(size), gradient_predivide_factor=factor, groups=first_and_last, passes=2)


@body()
def sum_instead_of_average(hvd: ModuleType, rank: int, size: int) -> None:
    twins(hvd, rank, range(size), reference_scale=float(size), op=hvd.Sum, tolerance=1e-4)


@body()
def compressed(hvd: ModuleType, rank: int, size: int) -> None:
    """Nearly the same; and gradients keep their type."""
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        for passes in (1, 2):
            twins(hvd, rank, range(size), compression=compression, passes=passes, tolerance=0.1)
    model = network()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), compression=hvd.Compression.fp16)
    train(optimizer, model, [rank])
    assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {torch.float32, torch.float64}


@body(sizes=(2, 3))
def buckets_are_compressed_as_well(hvd: ModuleType, rank: int, size: int) -> None:
    """Whatever carries them: what came of 1 + 1/4096 shows that it was rounded, from the first step to the last."""
    model = torch.nn.Linear(3000, 4, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = hvd.DistributedOptimizer(optimizer, compression=hvd.Compression.bf16)
    for step in range(1, 4):
        optimizer.zero_grad()
        model(torch.full((1, 3000), 1 + 1 / 4096)).sum().backward()
        optimizer.step()
        assert bool((model.weight == -step).all()), (step, model.weight)


class Halved:
    """A compressor of the user's own."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor.double() * 0.5, tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return (tensor * 2.0).to(ctx)


class Recorder:
    """A compressor with a memory that only counts."""

    def __init__(self, hvd: ModuleType) -> None:
        self.hvd, self.names = hvd, set[str]()

    def start(self, name: str, gradient: torch.Tensor, op: Any, process_set: Any) -> Callable[[], torch.Tensor]:
        self.names.add(name)
        handle = self.hvd.allreduce_async(gradient, name=name, op=op, process_set=process_set)
        return lambda: self.hvd.synchronize(handle)


@body()
def compressors_of_other_kinds(hvd: ModuleType, rank: int, size: int) -> None:
    twins(hvd, rank, range(size), compression=Halved)
    recorder = Recorder(hvd)
    twins(hvd, rank, range(size), compression=recorder, passes=2)
    assert len(recorder.names) == (6 if size > 1 else 0)


@body()
def small_buckets_and_orders(hvd: ModuleType, rank: int, size: int) -> None:
    """Many buckets, and layers that are used in another order on every rank. In 64 bits: gradients here are large, and
    four steps with momentum multiply what rounding makes of the order of their terms; in 32 bits that came to 1e-5, a
    hundred times what it is elsewhere."""
    model, reference = torch.nn.ModuleList(), torch.nn.ModuleList()
    for modules in (model, reference):
        torch.manual_seed(3)
        modules.extend(torch.nn.Linear(6, 6, dtype=torch.float64) for _ in range(8))
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    plain = sgd(reference.parameters())
    if size > 1:
        optimizer._reducer._most_bytes = 64

    def loss(modules: torch.nn.ModuleList, r: int) -> torch.Tensor:
        x = torch.full((3, 6), r + 1.0, dtype=torch.float64)
        order = list(range(8))[r:] + list(range(8))[:r]
        outs = torch.stack([modules[i](x).tanh().sum() for i in order])
        return outs.pow(2).mean()

    for _ in range(4):
        plain.zero_grad()
        sum(loss(reference, r) / size for r in range(size)).backward()  # type: ignore[union-attr]
        plain.step()
        optimizer.zero_grad()
        loss(model, rank).backward()
        optimizer.step()
    same(model, reference, tolerance=1e-12)
    assert size == 1 or len(optimizer._reducer._buckets) > 3


@body()
def sets_of_processes(hvd: ModuleType, rank: int, size: int) -> None:
    """Members average among themselves; others step by themselves."""
    with process_sets(hvd, size) as sets:
        for process_set in sets:
            ranks = process_set.ranks if process_set.included() else [rank]
            twins(hvd, rank, ranks, process_set=process_set)
            twins(hvd, rank, ranks, process_set=process_set, gradient_predivide_factor=2.0, passes=2)


@body()
def with_closures(hvd: ModuleType, rank: int, size: int) -> None:
    makes: list[Make] = [sgd, lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=4)]
    for make in makes:
        # Torch's LBFGS takes no gradients in channels_last.
        model, reference = (network().requires_grad_(True).to(memory_format=torch.contiguous_format) for _ in range(2))
        model.double()
        reference.double()
        plain = make(reference.parameters())
        optimizer = hvd.DistributedOptimizer(make(model.parameters()), model.named_parameters())
        for step in range(3):

            def evaluate(o: Any, m: torch.nn.Module, ranks: Iterable[int], step: int = step) -> torch.Tensor:
                o.zero_grad()
                x, y = batch(step, ranks)
                loss = loss_of(m, (x.double(), y))
                loss.backward()
                return loss

            expected = plain.step(lambda: evaluate(plain, reference, range(size)))  # noqa: B023
            got = optimizer.step(lambda: evaluate(optimizer, model, [rank]))  # noqa: B023
            assert size > 1 or abs(float(got) - float(expected)) < 1e-9
        same(model, reference, make, 1e-7)


@body(sizes=(2,), once=True)
def compiled(hvd: ModuleType, rank: int, size: int) -> None:
    model, reference = network(), network()
    whole_torch()
    faster = torch.compile(model, backend="aot_eager")
    train(sgd(reference.parameters()), reference, range(size))
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(faster, batch(10 * step, [rank])).backward()
        optimizer.step()
    same(model, reference)


@body()
def clipping(hvd: ModuleType, rank: int, size: int) -> None:
    model, reference = network(), network()
    plain = sgd(reference.parameters())
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    for step in range(STEPS):
        plain.zero_grad()
        loss_of(reference, batch(step, range(size))).backward()
        expected = torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.05)
        plain.step()
        optimizer.zero_grad()
        loss_of(model, batch(step, [rank])).backward()
        optimizer.synchronize()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        assert abs(norm - expected) < 1e-5
        with optimizer.skip_synchronize():
            optimizer.step()
    same(model, reference)


@body()
def schedules(hvd: ModuleType, rank: int, size: int) -> None:
    """A scheduler made before wrapping, and one made after."""
    for before, after in itertools.product((True, False), repeat=2):
        models = [network(), network()]
        plain = sgd(models[1].parameters())
        inner = sgd(models[0].parameters())
        early = torch.optim.lr_scheduler.StepLR(inner, 2, gamma=0.5) if before else None
        optimizer = hvd.DistributedOptimizer(inner, models[0].named_parameters())
        late = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5) if after else None
        schedulers = [torch.optim.lr_scheduler.StepLR(plain, 2, gamma=0.5) for used in (before, after) if used]
        for step in range(STEPS):
            for o, m, ranks in ((plain, models[1], range(size)), (optimizer, models[0], [rank])):
                o.zero_grad()
                loss_of(m, batch(step, ranks)).backward()
                o.step()
            for scheduler in (*schedulers, early, late):
                if scheduler is not None:
                    scheduler.step()
            assert optimizer.param_groups[0]["lr"] == plain.param_groups[0]["lr"]
        same(models[0], models[1], (before, after))
