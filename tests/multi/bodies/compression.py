"""Compressors with error feedback: against numpy, over many steps, on process sets, and training."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from itertools import product
from types import ModuleType
from typing import Any

import numpy as np
import torch
from tests.multi.body import body
from tests.multi.compressors import Contribute, Simulated, int8, one_bit, power_sgd, top_k
from tests.multi.data import process_sets, raises, tensor, tensors
from torch import nn
from torch.nn import functional

from hora.torch.compression import ErrorFeedback, Int8, OneBit, PowerSGD, TopK, reduce_gradients

SHAPES = ((30, 20), (12, 4, 3, 3), (613,))

Make = Callable[[], ErrorFeedback]

MAKERS: tuple[Make, ...] = (
    lambda: PowerSGD(rank=2, smallest=1),
    lambda: TopK(ratio=0.07, smallest=1),
    lambda: OneBit(smallest=1),
    lambda: Int8(chunk=100, smallest=1),
)


def as_formula(compressor: ErrorFeedback, name: str, shape: tuple[int, ...]) -> Contribute:
    """The same compressor in numpy."""
    match compressor:
        case TopK():
            return top_k(compressor.ratio)
        case OneBit():
            return one_bit()
        case Int8():
            return int8(compressor.chunk)
        case PowerSGD() if len(shape) > 1:
            return power_sgd(compressor.rank, name, shape)
    return lambda brought: brought


def error(compressor: ErrorFeedback, name: str) -> torch.Tensor:
    found: torch.Tensor = compressor.state_dict()["memory"][name]["tensors"]["error"]
    return found


def follow(
    hvd: ModuleType, compressor: ErrorFeedback, name: str, shape: tuple[int, ...], op: Any, process_set: Any
) -> None:
    """A few steps of this rank's set beside the simulation of all its ranks."""
    ranks = process_set.ranks
    simulated = Simulated(as_formula(compressor, name, shape))
    divisor = len(ranks) if op is hvd.Average else 1
    for step in range(3):
        parts = tensors(ranks, shape, torch.float64, f"{name}.{step}")
        expected = simulated.sum([np.asarray(part) for part in parts]) / divisor
        own = parts[process_set.rank()].clone()
        result = compressor.start(name, own, op, process_set)()
        assert result is own
        np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-9, atol=1e-9, err_msg=f"{compressor} {step}")
        everyone = hvd.allgather(result.reshape(1, -1), name="same", process_set=process_set)
        assert (everyone == everyone[0]).all(), "the same bits on every rank"


@body()
def as_numpy_has_it(hvd: ModuleType, rank: int, size: int) -> None:
    for make, (shape, op) in product(MAKERS, zip(SHAPES, (hvd.Average, hvd.Sum, hvd.Average), strict=True)):
        follow(hvd, make(), f"w.{shape}", shape, op, hvd.global_process_set)


@body(sizes=(2, 3, 4))
def process_sets_are_apart(hvd: ModuleType, rank: int, size: int) -> None:
    with process_sets(hvd, size) as sets:
        for make, op in product(MAKERS, (hvd.Average, hvd.Sum)):
            compressor = make()  # one for all sets: each set's error is its own
            for process_set in sets:
                if process_set.included():
                    follow(hvd, compressor, "w", (30, 20), op, process_set)
            mine = {"w"} | {f"w@{','.join(map(str, s.ranks))}" for s in sets[1:] if s.included()}
            assert set(compressor.state_dict()["memory"]) == mine
        for process_set in sets:
            if not process_set.included():
                with raises(hvd.NotMemberError):
                    OneBit(smallest=1).start("w", torch.ones(5), hvd.Sum, process_set)


@body()
def nothing_is_lost_only_late(hvd: ModuleType, rank: int, size: int) -> None:
    """The running sum of results comes back to the true one: what is missing is exactly the ranks' errors."""
    shape, steps = (30, 20), 40
    for make in MAKERS:
        compressor = make()
        sent, true = torch.zeros(shape), torch.zeros(shape)
        gaps = []
        for step in range(steps):
            # A part that stays, as in training, and noise of its own in every step.
            parts = [tensor(r, shape) + 0.5 * tensor(r, shape, seed=str(step)) for r in range(size)]
            true += torch.stack(parts).mean(0)
            sent += compressor.start("w", parts[rank].clone(), hvd.Average, hvd.global_process_set)()
            owed = hvd.allreduce(error(compressor, "w"), name="owed", op=hvd.Average)
            assert torch.allclose(sent + owed, true, rtol=1e-3, atol=1e-3), (compressor, step)
            gaps.append((sent - true).norm().item() / true.norm().item())
        assert gaps[-1] < 0.5, (compressor, gaps)
        assert gaps[-1] < 0.75 * gaps[4] or gaps[-1] < 0.01, (compressor, gaps)


@body()
def power_sgd_is_exact_where_the_sum_has_its_rank(hvd: ModuleType, rank: int, size: int) -> None:
    common = tensor(99, (3, 25))
    parts = [tensor(r, (40, 3)) @ common for r in range(size)]
    result = PowerSGD(rank=3, smallest=1).start("low", parts[rank].clone(), hvd.Sum, hvd.global_process_set)()
    assert torch.allclose(result, torch.stack(parts).sum(0), rtol=1e-4, atol=1e-4)

    class Always(PowerSGD):
        def pays(self, gradient: torch.Tensor, steps: int) -> bool:
            return True

    for shape in ((20, 6), (6, 20), (7, 7)):
        compressor = Always(rank=50, smallest=1)
        for step in range(3):
            parts = tensors(range(size), shape, seed=str(step))
            result = compressor.start(f"full.{shape}", parts[rank].clone(), hvd.Average, hvd.global_process_set)()
            assert torch.allclose(result, torch.stack(parts).mean(0), rtol=1e-4, atol=1e-4), (shape, step)


@body()
def any_order_and_any_number_at_once(hvd: ModuleType, rank: int, size: int) -> None:
    """Names, not order: ranks may start and finish their gradients as they come."""
    names = [f"w{i}" for i in range(12)]
    for make in MAKERS:
        together, alone = make(), make()
        for step in range(3):
            parts = {name: tensor(rank, (20, 15), seed=f"{name}.{step}") for name in names}
            finishes = {}
            for name in names[rank:] + names[:rank]:
                finishes[name] = together.start(name, parts[name].clone(), hvd.Sum, hvd.global_process_set)
            for name in names[::-1] if rank % 2 else names:
                parts[f"{name}.result"] = finishes[name]()
            for name in names:
                expected = alone.start(name, parts[name].clone(), hvd.Sum, hvd.global_process_set)()
                assert torch.equal(parts[f"{name}.result"], expected), (together, name, step)


@body()
def a_step_that_is_not_finite_leaves_no_trace(hvd: ModuleType, rank: int, size: int) -> None:
    """An overflow on one rank: all see it, and all go on as if the step had not been."""
    for make in MAKERS:
        spoiled, clean = make(), make()
        for compressor in (spoiled, clean):
            compressor.start("w", tensor(rank, (30, 20)), hvd.Average, hvd.global_process_set)()
        bad = tensor(rank, (30, 20), seed="bad")
        if rank == size - 1:
            bad[7, 7] = torch.inf
        assert not spoiled.start("w", bad, hvd.Average, hvd.global_process_set)().isfinite().all()
        results = [
            compressor.start("w", tensor(rank, (30, 20), seed="2"), hvd.Average, hvd.global_process_set)()
            for compressor in (spoiled, clean)
        ]
        assert torch.equal(*results), spoiled
        assert torch.equal(error(spoiled, "w"), error(clean, "w")), spoiled


@body(sizes=(2, 3, 4))
def different_sizes_are_noticed(hvd: ModuleType, rank: int, size: int) -> None:
    for number, make in enumerate(MAKERS):
        gradient = torch.ones(20 + 20 * (rank == 0), 20)
        with raises(hvd.MismatchError, f"w{number}"):
            make().start(f"w{number}", gradient, hvd.Sum, hvd.global_process_set)()


@body()
def a_checkpoint_of_rank_0_serves_all(hvd: ModuleType, rank: int, size: int) -> None:
    for make in MAKERS:
        before, after = make(), make()
        for step in range(3):
            before.start("w", tensor(rank, (30, 20), seed=str(step)), hvd.Sum, hvd.global_process_set)()
        after.load_state_dict(hvd.broadcast_object(before.state_dict(), root_rank=0))
        kept = after.state_dict()["memory"]["w"]
        assert kept["steps"] == 3 and ("error" in kept["tensors"]) == (rank == 0)
        parts = tensors(range(size), (30, 20), seed="next")
        owed = hvd.broadcast(error(before, "w"), 0)
        result = after.start("w", parts[rank].clone(), hvd.Sum, hvd.global_process_set)()
        left = hvd.allreduce(error(after, "w"), name="left", op=hvd.Sum)
        assert torch.allclose(result + left, torch.stack(parts).sum(0) + owed, rtol=1e-4, atol=1e-4)


@body()
def power_sgd_goes_on_where_ranks_have_joined(hvd: ModuleType, rank: int, size: int) -> None:
    compressor = PowerSGD(rank=2, smallest=1)
    common = tensor(99, (40, 2), torch.float64)
    for step in range(rank + 1):
        parts = [common @ tensor(r, (2, 25), torch.float64, seed=str(step)) for r in range(step, size)]
        own = parts[rank - step].clone()
        result = compressor.start("w", own, hvd.Sum, hvd.global_process_set)()
        assert torch.allclose(result, torch.stack(parts).sum(0), rtol=1e-6, atol=1e-6), step
    hvd.join()
    parts = [common @ tensor(r, (2, 25), torch.float64, seed="after") for r in range(size)]
    result = compressor.start("w", parts[rank].clone(), hvd.Sum, hvd.global_process_set)()
    assert torch.allclose(result, torch.stack(parts).sum(0), rtol=1e-6, atol=1e-6)
    everyone = hvd.allgather(result.reshape(1, -1))
    assert (everyone == everyone[0]).all(), "they have different memories, and still one result"


# --- training ---------------------------------------------------------------------------------------------------------

SEGMENTS = (
    "1110111", "0010010", "1011101", "1011011", "0111010", "1101011", "1101111", "1010010", "1111111", "1111011",
)  # fmt: skip
BARS = ((2, 5, 3, 10), (3, 8, 4, 5), (3, 8, 10, 11), (8, 9, 5, 10), (9, 14, 4, 5), (9, 14, 10, 11), (14, 15, 5, 10))

LEARNING_RATE = 0.05
EPOCHS = 6
TOLERANCE = 0.02
"""How much accuracy on images it has not seen a compressor may cost: 41 of 2048 images."""


@functools.cache
def digits(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Digits of a seven-segment display, shifted, dim and noisy; ``examples/first_job.py`` with half the noise."""
    generator = torch.Generator().manual_seed(seed)
    glyphs = torch.zeros(10, 18, 16)
    for digit, lit in enumerate(SEGMENTS):
        for on, (top, bottom, left, right) in zip(lit, BARS, strict=True):
            glyphs[digit, top:bottom, left:right] += on == "1"
    labels = torch.randint(10, (count,), generator=generator)
    shifts = torch.randint(-2, 3, (count, 2), generator=generator)
    images = torch.stack([glyphs[n].roll(s, (0, 1)) for n, s in zip(labels.tolist(), shifts.tolist(), strict=True)])
    images *= 0.5 + torch.rand(count, 1, 1, generator=generator)
    images += 0.2 * torch.randn(images.shape, generator=generator)
    return images.unsqueeze(1), labels


def train(hvd: ModuleType, reduce: Callable[[Iterable[tuple[str, nn.Parameter]]], None]) -> float:
    """Accuracy on held-out digits after a plain loop; every rank has its share of the images."""
    torch.manual_seed(1)
    images, labels = digits(4096, seed=7)
    images, labels = images[hvd.rank() :: hvd.size()], labels[hvd.rank() :: hvd.size()]
    model = nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2, padding=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(576, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, total_iters=EPOCHS)
    for epoch in range(EPOCHS):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(32):
            optimizer.zero_grad()
            functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            reduce(model.named_parameters())
            optimizer.step()
        schedule.step()
    same = hvd.allgather(torch.cat([p.detach().reshape(-1) for p in model.parameters()])[None])
    assert (same == same[0]).all(), "replicas have drifted apart"
    held_out_images, held_out_labels = digits(2048, seed=8)
    with torch.no_grad():
        return (model(held_out_images).argmax(1) == held_out_labels).double().mean().item()


@functools.cache  # on all ranks, as they all run the same bodies
def uncompressed(hvd: ModuleType) -> float:
    def reduce(parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
        hvd.grouped_allreduce_([p.grad for _, p in parameters], name="gradients", op=hvd.Average)

    return train(hvd, reduce)


def trains_as_well(hvd: ModuleType, compressor: ErrorFeedback, saves: float) -> None:
    plain = uncompressed(hvd)
    compressed = train(hvd, lambda parameters: reduce_gradients(parameters, compressor))
    print(f"accuracy {plain:.4f} uncompressed, {compressed:.4f} with {compressor.report()}")
    assert plain > 0.9, plain
    assert compressed > plain - TOLERANCE, (plain, compressed)
    assert compressor.raw_bytes > saves * compressor.wire_bytes, compressor.report()


@body(sizes=(2,), once=True)
def power_sgd_trains_as_well(hvd: ModuleType, rank: int, size: int) -> None:
    trains_as_well(hvd, PowerSGD(rank=2, start_step=8), saves=10)


@body(sizes=(2,), once=True)
def top_k_trains_as_well(hvd: ModuleType, rank: int, size: int) -> None:
    trains_as_well(hvd, TopK(ratio=0.02), saves=15)


@body(sizes=(2,), once=True)
def one_bit_trains_as_well(hvd: ModuleType, rank: int, size: int) -> None:
    trains_as_well(hvd, OneBit(), saves=15)


@body(sizes=(2,), once=True)
def int8_trains_as_well(hvd: ModuleType, rank: int, size: int) -> None:
    trains_as_well(hvd, Int8(), saves=3.5)
