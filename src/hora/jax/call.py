"""A collective as data: everything about one but its arrays.

JAX traces a function once and runs what it recorded many times, elsewhere, transformed. So a collective is recorded as
a ``JaxCall``, which can say what shapes its results will have, carry itself out on numpy arrays, and be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from hora.engine.backend import UnderWay
from hora.engine.core import submitted_from
from hora.errors import MismatchError, UsageError
from hora.ops import host
from hora.ops.call import Call, Results
from hora.ops.resolve import check_rows, equal_splits, scattered_rows
from hora.types import Rows

__all__ = ["JaxCall", "splits_in_program"]

Array = np.ndarray[Any, np.dtype[Any]]
Shape = tuple[int, ...]


class JaxCall(Call, frozen=True):
    """One collective, maybe in a program. Its results are all arrays and then, of those that gather rows, how many came
    from each rank, for each of them.

    >>> from hora.engine.process_set import global_process_set
    >>> from hora.types import Kind
    >>> JaxCall(Kind.BROADCAST, "x", global_process_set, root=0).shapes([(2, 3)])
    [(2, 3)]
    """

    line: str = ""  # of the user's source
    rows: tuple[tuple[int, ...], ...] = ()  # allgather: those of each rank, where they are known to differ

    def placed(self, line: str) -> JaxCall:
        """The same with the line of the user's source that it comes from."""
        return msgspec.structs.replace(self, line=line)

    def shapes(self, inputs: Sequence[Shape]) -> list[Shape]:
        """The shapes of the results, if all ranks bring as many rows as this one or ``rows`` says how many."""
        if self.elementwise:
            return list(inputs)
        if self.splits is not None:
            raise splits_in_program()
        size = self.process_set.size()
        if not self.kind.gathers:
            mine = self.process_set.rank()
            return [(scattered_rows(rows, size, mine), *width) for rows, *width in inputs]
        made: list[Shape] = [(sum(self._rows(i, rows, size)), *width) for i, (rows, *width) in enumerate(inputs)]
        return made + [(size,)] * len(inputs)

    def _rows(self, i: int, own: int, size: int) -> tuple[int, ...]:
        """How many rows each rank brings."""
        if self.kind.rows is Rows.EXCHANGED:
            return equal_splits(own, size)
        return self.rows[i] if self.rows else (own,) * size

    def start(self, arrays: Sequence[Array], into: Sequence[Array] | None = None) -> UnderWay[Results[Array]]:
        with submitted_from(self.line):
            return host.start(self, arrays, into)

    def carry_out(self, arrays: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Do it, and fill ``outputs``, whose shapes were fixed when the program was compiled."""
        if self.elementwise and self.memory is None:
            self.start(arrays, outputs).wait()
            return
        results = self.start(arrays).wait()
        if self.kind.gathers:
            self._check_rows(arrays, results.rows)
        for output, result in zip(outputs, host.flat(results), strict=True):
            output[...] = result

    def _check_rows(self, arrays: Sequence[Array], rows: Sequence[Any]) -> None:
        for i, (array, found) in enumerate(zip(arrays, rows, strict=True)):
            expected = self._rows(i, len(array), len(found))
            if tuple(found) != expected:
                brought = ", ".join(f"rank {r}: {n}" for r, n in zip(self.process_set.ranks, found, strict=True))
                raise MismatchError(
                    f"{self.function} in a compiled program got other numbers of rows than it was compiled"
                    f" for, {list(expected)} ({self.line}):\n  {brought}\nUnder jit the shape of a result is fixed"
                    " beforehand, so all ranks must bring equally many rows. Bring as many, or call it outside jit."
                )

    def check(self, shapes: Sequence[Shape]) -> None:
        """Refuse, while tracing, what cannot be carried out."""
        if not self.elementwise:
            for shape in shapes:
                check_rows(self.function, shape)


def splits_in_program() -> UsageError:
    """The error for an alltoall whose result has no shape before it is carried out."""
    return UsageError(
        "alltoall with splits under jit. How many rows come depends on the other ranks, and the shape of a result is"
        " fixed when the program is compiled. Call it outside jit, or leave splits out and send equally many."
    )
