"""How long a training step takes: computing, waiting for the slowest, and the communication that is not hidden.

    step = compute + jitter * compute * E[max of n] + max(exposed * comm, comm - 2/3 * compute)

*compute* is the step of one worker alone. Workers wait for the slowest of them: the expected largest of n normal
deviates, which grows as sqrt(2 log n). *comm* is the allreduce of all gradients; a share ``exposed`` of it is not
hidden, because the last bucket has nothing to hide behind and moving data slows computing; and no more of it can be
hidden than the backward pass is long, two thirds of a step (it does twice the work of the forward pass).

Everything takes numbers or numpy arrays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hora.predict.network import Number

__all__ = ["BACKWARD", "Parts", "expected_max", "step_parts"]

BACKWARD = 2 / 3  # of a step's arithmetic


@dataclass(frozen=True)
class Parts:
    """Where the time of a step goes, in seconds."""

    compute_s: Number
    waiting_s: Number
    comm_s: Number
    exposed_s: Number

    @property
    def step_s(self) -> Number:
        return self.compute_s + self.waiting_s + self.exposed_s


def step_parts(waiting: Number, compute_s: Number, comm_s: Number, exposed: Number, jitter: Number) -> Parts:
    """The parts of a step; ``waiting`` is ``expected_max`` of the number of workers.

    >>> parts = step_parts(expected_max(8), compute_s=0.3, comm_s=0.04, exposed=0.5, jitter=0.01)
    >>> round(float(parts.waiting_s), 5), float(parts.exposed_s), round(float(parts.step_s), 5)
    (0.00427, 0.02, 0.32427)
    >>> parts = step_parts(expected_max(8), 0.3, 0.5, 0.5, 0.0)  # more than fits behind the backward pass
    >>> round(float(parts.exposed_s), 5)
    0.3
    """
    unhidden = np.maximum(exposed * comm_s, comm_s - BACKWARD * compute_s)
    return Parts(compute_s, jitter * compute_s * waiting, comm_s, unhidden)


@lru_cache(maxsize=256)
def expected_max(n: int) -> float:
    """The expected largest of ``n`` standard normal deviates.

    >>> [round(expected_max(n), 4) for n in (1, 2, 4, 32)]
    [0.0, 0.5642, 1.0294, 2.0697]
    """
    x = np.linspace(-9.0, 9.0, 7201)
    below = np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in x])
    return float(((x[1:] + x[:-1]) / 2 * np.diff(below**n)).sum()) if n > 1 else 0.0
