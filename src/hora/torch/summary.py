"""The live summary: one line on rank 0 that says how training goes, if HORA_SUMMARY=1.

::

    hora: step 1,234: 347 ms, of which 19.0 ms (5 %) waiting for others; 97.5 MB sent; slowest: rank 3, 8.00 ms behind

Times are medians over the last steps, from the end of one to the end of the next; what is before the end of the first
is not counted. On a terminal the line is written again and again in its place; in a log there is one every few seconds,
and one at the end. Who is slowest is found by a small reduction now and then. The first rank says when (``is_due``),
and the reducer takes care that all that still train hear it in the same step: ranks that have joined in between, and so
have counted other numbers of steps, never wait for each other.
"""

from __future__ import annotations

import atexit
import math
import sys
import weakref
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple, TextIO

import torch

from hora.basics import Sum
from hora.engine import session
from hora.engine.core import Engine
from hora.engine.process_set import ProcessSet, global_process_set
from hora.ops.numbering import name_of
from hora.text import size_text, time_text
from hora.torch.collectives import allreduce_

__all__ = ["Figures", "Summary", "from_settings", "line", "slowest", "steps_until_next"]

_WINDOW = 50  # steps that medians are taken over
_LOG_EVERY_S = 5.0
_TERMINAL_EVERY_S = 0.2
_GATHER_EVERY_S = 3.0


class Figures(NamedTuple):
    """What a line tells."""

    steps: int
    step_s: float
    exposed_s: float
    sent_bytes: int
    slowest: int = -1  # a rank; -1 if not known, or nobody is
    behind_s: float = 0.0  # how much longer it computes than the others do


def from_settings(process_set: ProcessSet = global_process_set) -> Summary | None:
    """A summary if HORA_SUMMARY asks for it. All ranks of the set must ask alike."""
    engine = session.engine()
    return Summary(process_set) if engine.settings.summary and engine.rank in process_set.members else None


class Summary:
    """The summary of one optimizer."""

    def __init__(
        self,
        process_set: ProcessSet = global_process_set,
        stream: TextIO | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._process_set, self._clock = process_set, clock
        self._stream = stream or sys.stderr
        self._on_terminal = self._stream.isatty()
        self._steps: deque[tuple[float, float]] = deque(maxlen=_WINDOW)  # (all of it, waiting), in seconds
        self._count = self._bytes = 0
        self._ended: float | None = None  # when the last step did
        self._gather_at = 3
        self._written = -math.inf
        self._untold = False
        self._slowest, self._behind_s = -1, 0.0
        self._engine: Engine | None = None
        self._name = name_of(self, "summary", process_set)
        self._speaks = False
        last_words = weakref.WeakMethod(self.close)
        atexit.register(lambda: (close := last_words()) and close())

    def is_due(self) -> bool:
        """Whether the next step is one after which to ask all ranks for their figures. The first rank's word counts."""
        return self._count + 1 >= self._gather_at

    def end_step(self, exposed_s: float, sent_bytes: int, gather: bool = False) -> None:
        """A step is over, of which this rank spent ``exposed_s`` waiting for communication, and sent so many bytes.

        With ``gather``, which all ranks that take part in the step must say alike, their figures are brought together.
        """
        now = self._clock()
        if session.current is not self._engine:  # the first step, or the first of a new generation
            self._engine = session.engine()
            self._name = name_of(self, "summary", self._process_set)
            self._speaks = self._process_set.rank() == 0
            self._ended, self._gather_at = None, self._count + 3
        self._count, self._bytes, self._untold = self._count + 1, sent_bytes, True
        if self._ended is not None:
            self._steps.append((now - self._ended, exposed_s))
        if gather:
            self._gather()
        if self._speaks and self._steps and now - self._written >= self._every_s():
            self._write(now)
        self._ended = now

    def figures(self) -> Figures:
        """What is known now."""
        from statistics import median  # not worth its price at import

        step_s, exposed_s = (median(column) for column in zip(*self._steps, strict=True))
        return Figures(self._count, step_s, exposed_s, self._bytes, self._slowest, self._behind_s)

    def close(self) -> None:
        """The last line, if there is anything new."""
        if self._speaks and self._untold and self._steps:
            self._write(self._clock(), last=True)
        elif self._speaks and self._on_terminal and self._written > -math.inf:
            print(file=self._stream)
        self._speaks = False

    def _gather(self) -> None:
        """Who computes how long; and when to ask again."""
        _, step_s, exposed_s, *_ = self.figures() if self._steps else (0, 0.0, 0.0)
        table = torch.zeros((self._process_set.size(), 2), dtype=torch.float64, device="cpu")
        table[self._process_set.rank()] = torch.tensor([step_s, step_s - exposed_s], dtype=torch.float64, device="cpu")
        allreduce_(table, name=f"{self._name}.times", op=Sum, process_set=self._process_set)
        steps, computing = table.t().tolist()
        self._slowest, self._behind_s = slowest(dict(zip(self._process_set.members, computing, strict=True)))
        self._gather_at = self._count + steps_until_next(max(steps))

    def _every_s(self) -> float:
        return _TERMINAL_EVERY_S if self._on_terminal else _LOG_EVERY_S

    def _write(self, now: float, last: bool = False) -> None:
        number = int(self._name.rpartition(".")[2])
        text = line(self.figures(), f" optimizer {number + 1}," if number else "")
        if self._on_terminal:
            text = f"\r{text}\x1b[K" + ("\n" if last else "")
        else:
            text += "\n"
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # nobody reads any more; training goes on
            self._speaks = False
        self._written, self._untold = now, False


def slowest(computing: dict[int, float]) -> tuple[int, float]:
    """The rank that computes longest, and how much longer than the middle one; -1 if that is less than 2 %.

    >>> slowest({0: 0.30, 1: 0.31, 2: 0.40})
    (2, 0.09...)
    >>> slowest({0: 0.300, 1: 0.301})
    (-1, 0.0)
    """
    from statistics import median

    rank = max(computing, key=lambda r: computing[r])
    others = [seconds for r, seconds in computing.items() if r != rank and seconds > 0]
    usual = median(others) if others else computing[rank]
    behind = computing[rank] - usual
    return (rank, behind) if behind > 0.02 * usual else (-1, 0.0)


def steps_until_next(step_s: float) -> int:
    """After how many steps to ask who is slowest again: a few seconds' worth.

    >>> steps_until_next(0.347), steps_until_next(0.0001), steps_until_next(60.0)
    (9, 10000, 1)
    """
    return min(10_000, max(1, math.ceil(_GATHER_EVERY_S / max(step_s, 1e-9))))


def line(figures: Figures, label: str = "") -> str:
    """The line.

    >>> line(Figures(1234, 0.347, 0.019, 102_228_128, 3, 0.008))
    'hora: step 1,234: 347 ms, of which 19.0 ms (5 %) waiting for others; 97.5 MB sent; slowest: rank 3, 8.00 ms behind'
    """
    share = 100 * figures.exposed_s / figures.step_s if figures.step_s else 0.0
    parts = [
        f"hora:{label} step {figures.steps:,}: {time_text(figures.step_s)}, of which {time_text(figures.exposed_s)}"
        f" ({share:.0f} %) waiting for others",
        f"{size_text(figures.sent_bytes)} sent",
    ]
    if figures.slowest >= 0:
        parts.append(f"slowest: rank {figures.slowest}, {time_text(figures.behind_s)} behind")
    return "; ".join(parts)
