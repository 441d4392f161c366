"""The guards and the summary between ranks: who is named, and that all ranks decide alike."""

from __future__ import annotations

import io
import logging
import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import torch
from tests.multi.body import body
from tests.multi.data import process_sets, raises

from hora.config.settings import Settings
from hora.errors import DivergenceError, NonFiniteError
from hora.torch.guard import Guard, StepDecision
from hora.torch.summary import Summary

NAMES = ("conv.weight", "conv.bias", "fc.weight")


@contextmanager
def warnings_of_hora() -> Iterator[list[str]]:
    said: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    log, handler = logging.getLogger("hora"), Keep(logging.WARNING)
    log.addHandler(handler)
    try:
        yield said
    finally:
        log.removeHandler(handler)


def reduce(hvd: ModuleType, guard: Guard, flat: torch.Tensor, process_set: object = None) -> StepDecision:
    """A reducer of one bucket: three pieces and a mark at the end."""
    pieces = zip(NAMES, flat[:-1].chunk(3), strict=True)
    guard.before_reduce(flat, pieces, flat[-1:])
    hvd.allreduce_(flat, name="bucket", process_set=process_set or hvd.global_process_set)
    return guard.after_reduce([flat[-1:]])


@body()
def one_element_on_one_rank(hvd: ModuleType, rank: int, size: int) -> None:
    """R16: found in the same step, rank and tensor named on all ranks, every time."""
    chance, guard = random.Random(3), Guard(Settings(nonfinite="stop"))
    for trial in range(200):
        culprit, place = chance.randrange(size), chance.randrange(300)
        value = chance.choice([math.nan, math.inf, -math.inf])
        flat = torch.zeros(301)
        flat[:-1] = torch.randn(300)
        if trial % 5 == 4:
            assert reduce(hvd, guard, flat) is StepDecision.GO
            continue
        if rank == culprit:
            flat[place] = value
        kind = "nan" if math.isnan(value) else "inf"
        with raises(
            NonFiniteError, f"step {trial + 1}:", f"on rank {culprit}: {NAMES[place // 100]} ({kind}).", "=stop"
        ):
            reduce(hvd, guard, flat)


@body()
def several_ranks_and_skip(hvd: ModuleType, rank: int, size: int) -> None:
    guard = Guard(Settings(nonfinite="skip"))
    with warnings_of_hora() as said:
        flat = torch.ones(301)
        flat[:-1][rank * 100 % 300] = math.inf
        assert reduce(hvd, guard, flat) is StepDecision.SKIP
    expected = [f"on rank {r}: {NAMES[r % 3]} (inf)" for r in range(size)]
    assert len(said) == (rank == 0)  # once for all
    if rank == 0:
        assert "; ".join(expected) in said[0] and "left out, on all ranks" in said[0], said
    assert reduce(hvd, guard, torch.ones(301)) is StepDecision.GO


@body()
def warn_changes_nothing_but_the_mark(hvd: ModuleType, rank: int, size: int) -> None:
    guard = Guard(Settings(nonfinite="warn"))
    flat = torch.full((301,), float(rank))
    if rank == 0:
        flat[7] = math.nan
    with warnings_of_hora():
        assert reduce(hvd, guard, flat) is StepDecision.GO
    expected = torch.full((300,), sum(range(size)) / size)
    expected[7] = math.nan
    assert torch.equal(flat[:-1].isnan(), expected.isnan())
    assert torch.allclose(flat[:-1], expected, equal_nan=True)


@body()
def in_process_sets(hvd: ModuleType, rank: int, size: int) -> None:
    with process_sets(hvd, size) as known:
        for process_set in known:
            if not process_set.included():
                continue
            guard = Guard(Settings(nonfinite="stop"), process_set)
            flat = torch.ones(301)
            if rank == process_set.ranks[-1]:
                flat[0] = math.nan
            with raises(NonFiniteError, f"on rank {process_set.ranks[-1]}: conv.weight (nan)"):
                reduce(hvd, guard, flat, process_set)


@body(sizes=(2, 3))
def found_after_a_join(hvd: ModuleType, rank: int, size: int) -> None:
    """The last rank is out of data; the others go on, and still find what they must."""
    guard = Guard(Settings(nonfinite="stop", divergence_every=1, strict=True))
    if rank < size - 1:
        flat = torch.ones(301)
        flat[150] = math.nan if rank == 0 else 1.0
        with raises(NonFiniteError, "on rank 0: conv.bias (nan)"):
            reduce(hvd, guard, flat)
        assert guard.check_replicas([("w", torch.ones(3))], 1)
    hvd.join()


@body()
def one_bit_of_one_parameter(hvd: ModuleType, rank: int, size: int) -> None:
    """R17: found at the next check; the rank named by majority from three ranks on, and the parameter always."""
    chance, guard = random.Random(5), Guard(Settings(divergence_every=10, strict=True))
    parameters = [torch.full((1000,), 0.5 + i) for i in range(3)]
    named = list(zip(NAMES, parameters, strict=True))
    for trial in range(100):
        culprit, place, element = chance.randrange(size), chance.randrange(3), chance.randrange(1000)
        flip = chance.choice([1 << chance.randrange(31), -(1 << 31)])
        assert guard.check_replicas(named, 10 * trial + 10)
        if rank == culprit:
            parameters[place].view(torch.int32)[element] ^= flip
        assert guard.check_replicas(named, 10 * trial + 13)  # not now
        if size > 1:
            words = [f"first in {NAMES[place]} (1 of 3 parameters)", f"rank {culprit}"]
            if size > 2:
                words.append(f"the parameters of rank {culprit} differ from those of ranks")
            with raises(DivergenceError, f"step {10 * trial + 20}:", *words):
                guard.check_replicas(named, 10 * trial + 20)
        if rank == culprit:
            parameters[place].view(torch.int32)[element] ^= flip


@body(sizes=(2, 3))
def parameters_that_were_not_broadcast(hvd: ModuleType, rank: int, size: int) -> None:
    guard = Guard(Settings())
    model = torch.nn.Linear(3, 2)  # seeded by the rank
    with warnings_of_hora() as said:
        assert not guard.check_replicas(model.named_parameters(), 1)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        assert guard.check_replicas(model.named_parameters(), 100)
    assert len(said) == (rank == 0)
    assert all("step 1:" in text and "hvd.broadcast_parameters(" in text for text in said)


@body(sizes=(2, 3, 4))
def the_slowest_rank(hvd: ModuleType, rank: int, size: int) -> None:
    """The last rank computes for 90 ms of a step of 100, the others for 60 and wait."""
    now, stream = [0.0], io.StringIO()
    summary = Summary(stream=stream, clock=lambda: now[0])
    waiting = 0.01 if rank == size - 1 else 0.04
    for _ in range(100):
        now[0] += 0.1
        summary.end_step(waiting, 1000, summary.is_due())
    summary.close()
    figures = summary.figures()
    assert figures.slowest == size - 1 and abs(figures.behind_s - 0.03) < 1e-6
    said = stream.getvalue()
    assert (f"slowest: rank {size - 1}, 30.0 ms behind" in said) == (rank == 0), said
