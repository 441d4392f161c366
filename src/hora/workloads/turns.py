"""Measuring in turns, in the same processes: workers alone, alone but synchronised once a step, and with Hora.

A run that takes turns (`hora train … -np N --max-steps S --by-turns`) learns nothing, it measures: after some steps to
warm up, together and by themselves, come rounds of three blocks of steps,

- ``limit``     every worker trains by itself, beside the others: what the machine can do
- ``in step``   the same, but all meet once a step with four bytes: what waiting for the slowest costs
- ``together``  gradients are averaged, as ever

so that whatever disturbs the machine disturbs all three alike; who comes first moves on by one each round. All line up
before a block, and its first step is left out. Before each block in step the bare meeting is timed, when nobody is
late. The learning rate is 0: workers that train by themselves must neither drift apart nor diverge.

What came of it is in the run's result on the first rank, as ``by_turns``: ``{"limit": [[s, …] of rank 0, [s, …] of rank
1, …], "in step": …, "together": …, "data": {"limit": [s of rank 0, …], …}, "meeting": s}``.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hora.engine import session
from hora.engine.preempt import preempted
from hora.engine.process_set import global_process_set
from hora.errors import UsageError
from hora.ops.objects import allgather_object
from hora.workloads.options import WorkloadOptions

__all__ = ["MODES", "Turns", "steps_for", "taken"]

MODES = ("limit", "in step", "together")
BLOCK = 5  # steps
WARM_UP = 3  # of each kind: what is compiled is compiled then
_MEETINGS = 3  # timed before a block

_wanted = False


def steps_for(each: int) -> int:
    """How many steps a run needs for about that many of each kind, in all.

    >>> steps_for(40), steps_for(1)
    (126, 21)
    """
    return 2 * WARM_UP + -(-each // BLOCK) * BLOCK * len(MODES)


@contextmanager
def taken(options: WorkloadOptions) -> Iterator[None]:
    """Inside, runs take turns."""
    global _wanted
    if options.max_steps < steps_for(1):
        raise UsageError(
            f"--by-turns with --max-steps {options.max_steps}: three kinds of steps are measured, in blocks of "
            f"{BLOCK}. Give --max-steps {steps_for(1)} or more."
        )
    _wanted = True
    try:
        yield
    finally:
        _wanted = False


class Turns:
    """Whose turn it is. ``rest(True)`` makes this worker train by itself, ``rest(False)`` with the others."""

    def __init__(self, steps: int, rest: Callable[[bool], None]) -> None:
        self._rest = rest
        rounds = (steps - 2 * WARM_UP) // (BLOCK * len(MODES))
        # Of the block under way; first that of warming up together.
        self._left = steps - rounds * BLOCK * len(MODES) - WARM_UP
        self._warm = False
        self._blocks = [MODES[(place + number) % len(MODES)] for number in range(rounds) for place in range(len(MODES))]
        self._steps: dict[str, list[float]] = {mode: [] for mode in MODES}
        self._data: dict[str, list[float]] = {mode: [] for mode in MODES}
        self._meetings: list[float] = []
        self._settled = False  # the first step of this block is over
        self.mode = ""  # the block's; none while it warms up
        self.found: dict[str, Any] = {}  # at the end

    @classmethod
    def wanted(cls, steps: int, rest: Callable[[bool], None]) -> Turns | None:
        """What a run asks when it begins; None unless turns are to be taken."""
        return cls(steps, rest) if _wanted else None

    @property
    def alone(self) -> bool:
        """Whether this worker trains by itself."""
        return self.mode in ("limit", "in step")

    @property
    def meets(self) -> bool:
        """Whether all meet after this step."""
        return self.mode != "limit"

    def step(self, step_s: float, data_s: float) -> bool:
        """A step is done; whether a block has ended with it, so that the clock must start again."""
        if self.mode and self._settled:
            self._steps[self.mode].append(step_s)
            self._data[self.mode].append(data_s)
        self._settled = True
        self._left -= 1
        if self._left:
            return False
        if not self._warm:
            self._warm, self._left = True, WARM_UP
            self._rest(True)
        elif self._blocks:
            self._begin(self._blocks.pop(0))
        else:
            self._end()
        return True

    def _begin(self, mode: str) -> None:
        self._rest(mode != "together")
        self.mode, self._left, self._settled = mode, BLOCK, False
        session.engine().barrier(global_process_set)
        if mode == "in step":
            for _ in range(_MEETINGS):
                began = time.perf_counter()
                preempted()
                self._meetings.append(time.perf_counter() - began)

    def _end(self) -> None:
        self._rest(False)
        self.mode = ""
        data = {mode: statistics.median(values) for mode, values in self._data.items()}
        ranks = allgather_object((self._steps, data), name="hora.by_turns")
        self.found = {
            **{mode: [steps[mode] for steps, _ in ranks] for mode in MODES},
            "data": {mode: [waits[mode] for _, waits in ranks] for mode in MODES},
            "meeting": statistics.median(self._meetings),
        }
        self._left = -1
