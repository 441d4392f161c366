"""A collective as data: everything about one but its arrays.

JAX traces a function once and runs what it recorded many times, elsewhere, transformed. So a collective is recorded as
a ``JaxCall``, which can say what shapes its results will have, carry itself out on numpy arrays, and be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hora.engine.backend import UnderWay
from hora.engine.core import submitted_from
from hora.errors import MismatchError, UsageError
from hora.ops import call as ops
from hora.ops.resolve import check_rows, equal_splits, scattered_rows
from hora.types import Kind

__all__ = ["JaxCall", "splits_in_program"]

Array = np.ndarray[Any, np.dtype[Any]]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class JaxCall(ops.Call):
    """One collective, maybe in a program. Of those that gather rows, each result is followed by how many rows came from
    each rank.

    >>> from hora.engine.process_set import global_process_set
    >>> JaxCall(Kind.BROADCAST, "x", global_process_set, root=0).shapes([(2, 3)])
    [(2, 3)]
    """

    line: str = ""  # of the user's source
    rows: tuple[tuple[int, ...], ...] = ()  # allgather: those of each rank, where they are known to differ

    def named(self, suffix: str, **changed: Any) -> JaxCall:
        """Another call, named after this one."""
        return replace(self, name=None if self.name is None else f"{self.name}.{suffix}", **changed)

    def shapes(self, inputs: Sequence[Shape]) -> list[Shape]:
        """The shapes of the results, if all ranks bring as many rows as this one or ``rows`` says how many."""
        if self.elementwise:
            return list(inputs)
        if self.splits is not None:
            raise splits_in_program()
        size, made = self.process_set.size(), []
        for i, (rows, *width) in enumerate(inputs):
            if self.kind is Kind.REDUCESCATTER:
                made.append((scattered_rows(rows, size, self.process_set.rank()), *width))
            else:
                made += [(sum(self._rows(i, rows, size)), *width), (size,)]
        return made

    def _rows(self, i: int, own: int, size: int) -> tuple[int, ...]:
        """How many rows each rank brings."""
        if self.kind is Kind.ALLTOALL:
            return equal_splits(own, size)
        return self.rows[i] if self.rows else (own,) * size

    def start(self, arrays: Sequence[Array], into: Sequence[Array] | None = None) -> UnderWay[list[Array]]:
        with submitted_from(self.line):
            return ops.Call.start(self, arrays, into)

    def carry_out(self, arrays: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Do it, and fill ``outputs``, whose shapes were fixed when the program was compiled."""
        if self.elementwise and self.memory is None:
            self.start(arrays, outputs).wait()
            return
        results = self.start(arrays).wait()
        if self.gathers:
            self._check_rows(arrays, results)
        for output, result in zip(outputs, results, strict=True):
            output[...] = result

    def _check_rows(self, arrays: Sequence[Array], results: Sequence[Array]) -> None:
        for i, (array, found) in enumerate(zip(arrays, results[1::2], strict=True)):
            expected = self._rows(i, len(array), len(found))
            if tuple(found) != expected:
                brought = ", ".join(f"rank {r}: {n}" for r, n in zip(self.process_set.ranks, found, strict=True))
                raise MismatchError(
                    f"{self.kind.name.lower()} in a compiled program got other numbers of rows than it was compiled"
                    f" for, {list(expected)} ({self.line}):\n  {brought}\nUnder jit the shape of a result is fixed"
                    " beforehand, so all ranks must bring equally many rows. Bring as many, or call it outside jit."
                )

    def check(self, shapes: Sequence[Shape]) -> None:
        """Refuse, while tracing, what cannot be carried out."""
        if not self.elementwise:
            for shape in shapes:
                check_rows(self.kind.name.lower(), shape)


def splits_in_program() -> UsageError:
    """The error for an alltoall whose result has no shape before it is carried out."""
    return UsageError(
        "alltoall with splits under jit. How many rows come depends on the other ranks, and the shape of a result is"
        " fixed when the program is compiled. Call it outside jit, or leave splits out and send equally many."
    )
