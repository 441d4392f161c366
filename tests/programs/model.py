"""What a program's operations must give, in numpy alone: every rank computes what everybody brought.

Values are whole numbers, so small that all sums and products are exact in every type and order; a tensor's are a piece
of one long random sequence, which begins elsewhere for each operation, step, rank and tensor. So data of another
operation, rank, round or place is another.
"""

from __future__ import annotations

import math
import random
from functools import lru_cache
from typing import Any

import numpy as np
from tests.programs.program import FLOATS, Op, Phase, Program, mix, multiple_for_means

Array = np.ndarray[Any, np.dtype[Any]]

SEQUENCE = 1 << 23
_BITS = np.frombuffer(random.Random("hora").randbytes(SEQUENCE), np.uint8)


@lru_cache(maxsize=4096)
def _values(dtype: str, how: str, members: int, multiple: int, prescale: float) -> Array:
    """The value for each of 256 random bytes, multiplied by ``prescale`` in the type it is summed in."""
    if dtype == "bool":
        values = [0, 1]
    elif how == "product":
        values = [1, 1, 2] if dtype == "uint8" else [1, -1, 2, -2, 1]
    else:
        most = max(1, min(8, 256 // (3 * members * multiple)))
        values = list(range(0 if dtype == "uint8" else -most, most + 1))
    table = np.resize(np.array(values) * (1 if dtype == "bool" else multiple), 256)
    if dtype in FLOATS:
        return (table * prescale).astype("float32")
    return np.trunc(table * prescale).astype("int32")


class Model:
    """One program's values and results. ``phase`` says who takes part, ``index`` counts a thread's operations."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def brought(self, phase: Phase, op: Op, step: int, rank: int, tensor: int) -> Array:
        """What a rank brings: numbers of the right value and shape, not yet of the right type."""
        shape = op.shapes[tensor]
        if op.kind == "allgather":
            shape = (self._program.rows(op, step, rank, tensor), *shape[1:])
        return self._flat(phase, op, step, rank, tensor, 1.0)[: math.prod(shape)].reshape(shape)

    def expected(self, phase: Phase, op: Op, step: int, index: int, rank: int) -> list[Array]:
        """What ``rank`` gets, a tensor each; numbers of the right value and shape, not yet of the right type."""
        contributors = self._program.contributors(phase, op, index)
        tensors = range(len(op.shapes))
        match op.kind:
            case "allgather":
                return [np.concatenate([self.brought(phase, op, step, r, t) for r in contributors]) for t in tensors]
            case "broadcast":
                return [self.brought(phase, op, step, op.root, t) for t in tensors]
            case "alltoall":
                return [self._exchanged(phase, op, step, rank)]
            case "reducescatter":
                return [self._scattered(phase, op, step, rank, t, contributors) for t in tensors]
        return [self._reduced(phase, op, step, t, contributors, slice(None)) for t in tensors]

    def received(self, op: Op, step: int, rank: int) -> list[int]:
        """Alltoall: how many rows come from each member."""
        members = self._program.sets[op.set]
        return [self._program.sent(op, step, member)[members.index(rank)] for member in members]

    def _flat(self, phase: Phase, op: Op, step: int, rank: int, tensor: int, prescale: float) -> Array:
        members = len(self._program.sets[op.set])
        reduces = op.kind in ("allreduce", "reducescatter")
        means = op.how == "average" and reduces and op.dtypes[tensor] in FLOATS
        multiple = multiple_for_means(members, bool(phase.quotas)) if means else 1
        how = op.how if reduces else "sum"
        values = _values(op.dtypes[tensor], how, members, multiple, prescale)
        count = math.prod(op.shapes[tensor])
        drawn = mix(self._program.seed, self._program.number, op.number, step, rank, tensor)
        start = drawn % (SEQUENCE - count)
        return values[_BITS[start : start + count]]

    def _reduced(
        self, phase: Phase, op: Op, step: int, tensor: int, contributors: tuple[int, ...], part: slice
    ) -> Array:
        shape, dtype = op.shapes[tensor], op.dtypes[tensor]
        parts = [
            self._flat(phase, op, step, r, tensor, op.prescale).reshape(shape)[part if shape else ...]
            for r in contributors
        ]
        if op.how == "adasum":
            return _adasum([part.astype("float64") for part in parts]) * op.postscale
        if dtype == "bool":
            every = op.how in ("min", "product")
            return np.logical_and.reduce(parts) if every else np.logical_or.reduce(parts)
        combine = {"min": np.minimum, "max": np.maximum, "product": np.multiply}.get(op.how, np.add)
        total = parts[0].copy()
        for more in parts[1:]:
            combine(total, more, out=total)
        whole = dtype not in FLOATS
        if op.how == "average":
            divisor = len(contributors) if phase.average_active else len(self._program.sets[op.set])
            total = np.trunc(total / divisor).astype("int32") if whole else total / np.float32(divisor)
        if op.postscale != 1.0:
            scaled = total * op.postscale
            total = np.trunc(scaled).astype("int32") if whole else scaled.astype("float32")
        return total

    def _scattered(
        self, phase: Phase, op: Op, step: int, rank: int, tensor: int, contributors: tuple[int, ...]
    ) -> Array:
        members = self._program.sets[op.set]
        rows, place = op.shapes[tensor][0], members.index(rank)
        each, more = divmod(rows, len(members))
        low = place * each + min(place, more)
        return self._reduced(phase, op, step, tensor, contributors, slice(low, low + each + (place < more)))

    def _exchanged(self, phase: Phase, op: Op, step: int, rank: int) -> Array:
        members = self._program.sets[op.set]
        place, parts = members.index(rank), []
        for member in members:
            splits = self._program.sent(op, step, member)
            low = sum(splits[:place])
            parts.append(self.brought(phase, op, step, member, 0)[low : low + splits[place]])
        return np.concatenate(parts)


def _adasum(vectors: list[Array]) -> Array:
    """Pairs, then pairs of pairs: each loses half of its share in the direction of the other."""
    while len(vectors) > 1:
        vectors = [_pair(a, b) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
    return vectors[0]


def _pair(a: Array, b: Array) -> Array:
    dot, aa, bb = float(np.vdot(a, b)), float(np.vdot(a, a)), float(np.vdot(b, b))
    return a * (1 - dot / (2 * aa) if aa else 1.0) + b * (1 - dot / (2 * bb) if bb else 1.0)
