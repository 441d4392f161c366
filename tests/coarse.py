"""A compressor with a memory that needs no framework: it sends halves, and keeps what is between them for later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hora.engine.process_set import ProcessSet
from hora.ops import host
from hora.types import ReduceOp, Reduction

__all__ = ["Coarse", "averaged", "gradient"]


class Coarse:
    """``ops.compression.GradientCompressor``."""

    def __init__(self) -> None:
        self.raw_bytes = self.wire_bytes = 0
        self.errors: dict[str, Any] = {}

    def start(self, name: str, gradient: Any, op: ReduceOp, process_set: ProcessSet) -> Callable[[], Any]:
        wanted = gradient + self.errors.get(name, np.float32(0))
        sent = np.round(wanted * 2) / 2
        self.errors[name] = wanted - sent
        self.raw_bytes += gradient.nbytes
        under_way = host.allreduce([sent], Reduction(op), name, process_set)

        def finish() -> Any:
            gradient[...] = under_way.wait()[0]
            return gradient

        return finish

    def report(self) -> str:
        return "halves"

    def state_dict(self) -> dict[str, Any]:
        return dict(self.errors)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.errors = dict(state)


def gradient(rank: int, step: int) -> Any:
    """What a rank computes in a step."""
    return np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3) * (rank + 1) * 0.3 + np.float32(0.1) * step


def averaged(size: int, steps: int) -> Sequence[Any]:
    """What all ranks step with, computed by one."""
    errors = [np.zeros((2, 3), np.float32)] * size
    results = []
    for step in range(steps):
        wanted = [gradient(rank, step) + errors[rank] for rank in range(size)]
        sent = [np.round(each * 2) / 2 for each in wanted]
        errors = [whole - part for whole, part in zip(wanted, sent, strict=True)]
        results.append(np.mean(sent, axis=0))
    return results
