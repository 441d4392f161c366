"""Interleaved timing: contenders take turns, so that whatever disturbs the machine disturbs all of them alike.

Runs on every worker in step. Hora's own barrier lines the ranks up before each turn, for every contender the same.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch

import hora.torch as hvd
from hora.lab.bench.contenders import Task

__all__ = ["Timing", "check", "take_turns"]

MOST_CALLS = 5_000
WARM_UP_CALLS = 3


class Timing:
    """One contender's turns: how many calls a turn has, and seconds per call of each."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.calls = 1
        self.seconds: list[float] = []

    def turn(self) -> float:
        """Line up with the other ranks, make the calls, return seconds per call."""
        call, calls = self.task.call, self.calls
        hvd.barrier()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - start) / calls

    def warm_up(self, round_s: float) -> None:
        """Make first calls, and agree with the other ranks on how many fill a turn."""
        for _ in range(WARM_UP_CALLS):
            self.task.call()
        self.calls = WARM_UP_CALLS
        slowest = _largest(self.turn())
        self.calls = max(1, min(MOST_CALLS, round(round_s / slowest)))


def _largest(value: float) -> float:
    return float(hvd.allreduce(torch.tensor([value], dtype=torch.float64), name="bench.largest", op=hvd.Max).item())


def check(key: str, task: Task) -> None:
    """Refuse to time a contender that does not sum; leaves zeros, of which any number of sums stays finite."""
    if not task.sums:
        return
    for buffer in task.buffers:
        buffer.fill_(hvd.rank() + 1)
    task.call()
    expected = hvd.size() * (hvd.size() + 1) / 2
    for buffer in task.buffers:
        if not bool((buffer == expected).all()):
            wrong = buffer[buffer != expected].flatten()
            raise AssertionError(
                f"{key} summed wrongly on rank {hvd.rank()}: {wrong.numel()} of {buffer.numel()} elements are not "
                f"{expected}, the first is {wrong[0].item()}. Its time would mean nothing."
            )
        buffer.zero_()


def take_turns(tasks: Mapping[str, Task], rounds: int, round_s: float) -> dict[str, Timing]:
    """Time every task ``rounds`` times; who comes first moves on by one each round."""
    timings = {key: Timing(task) for key, task in tasks.items()}
    for key, timing in timings.items():
        check(key, timing.task)
        timing.warm_up(round_s)
    keys = list(timings)
    for round_ in range(rounds):
        first = round_ % len(keys)
        for key in keys[first:] + keys[:first]:
            timings[key].seconds.append(timings[key].turn())
    return timings
