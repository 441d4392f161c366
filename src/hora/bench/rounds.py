"""Interleaved timing: contenders take turns, so that whatever disturbs the machine disturbs all of them alike.

Runs on every worker in step. Hora's own barrier lines the ranks up before each turn, for every contender the same.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping

import torch

import hora.torch as hvd
from hora.bench.contenders import TimedTask

__all__ = ["Timing", "check", "take_turns"]

MOST_CALLS = 5_000
WARM_UP_CALLS = 3
LONG_ENOUGH_S = 20e-6  # for a look at the clock after every call not to show


class Timing:
    """One contender's turns: how many calls a turn has, and seconds per call of each; single calls if long enough."""

    def __init__(self, task: TimedTask, settle: Callable[[], object] | None = None) -> None:
        self.task, self._settle = task, settle
        self.calls = 1
        self.seconds: list[float] = []
        self.single_s: list[float] = []
        self._each = False

    @property
    def p99_s(self) -> float:
        """Which one single call in a hundred exceeds; 0 if they were not timed."""
        calls = sorted(self.single_s)
        return calls[round(0.99 * (len(calls) - 1))] if calls else 0.0

    def turn(self) -> float:
        """Line up with the other ranks, make the calls, return seconds per call."""
        call, calls, clock = self.task.call, self.calls, time.perf_counter
        hvd.barrier()
        start = clock()
        if not self._each:
            for _ in range(calls):
                call()
            if self._settle is not None:
                self._settle()
            return (clock() - start) / calls
        stamps = [start]
        for _ in range(calls):
            call()
            stamps.append(clock())
        self.single_s += [later - earlier for earlier, later in itertools.pairwise(stamps)]
        return (stamps[-1] - start) / calls

    def warm_up(self, round_s: float) -> None:
        """Make first calls, and agree with the other ranks on how many fill a turn."""
        for _ in range(WARM_UP_CALLS):
            self.task.call()
        self.calls = WARM_UP_CALLS
        slowest = _largest(self.turn())
        self.calls = max(1, min(MOST_CALLS, round(round_s / slowest)))
        self._each = slowest >= LONG_ENOUGH_S and self._settle is None  # on a device a call is only queued


def _largest(value: float) -> float:
    return float(hvd.allreduce(torch.tensor([value], dtype=torch.float64), name="bench.largest", op=hvd.Max).item())


def check(key: str, task: TimedTask) -> None:
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


def take_turns(
    tasks: Mapping[str, TimedTask], rounds: int, round_s: float, settle: Callable[[], object] | None = None
) -> dict[str, Timing]:
    """Time every task ``rounds`` times; who comes first moves on by one each round. ``settle`` waits for a device, at
    the end of a turn."""
    timings = {key: Timing(task, settle) for key, task in tasks.items()}
    for key, timing in timings.items():
        check(key, timing.task)
        timing.warm_up(round_s)
    keys = list(timings)
    for round_ in range(rounds):
        first = round_ % len(keys)
        for key in keys[first:] + keys[:first]:
            timings[key].seconds.append(timings[key].turn())
    return timings
