"""A collective as data: everything about one but its arrays.

JAX traces a function once and runs what it recorded many times, elsewhere, transformed. So a collective is recorded as
a ``Call``, which can say what shapes its results will have, carry itself out on numpy arrays, and be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hora.engine.core import submitted_from
from hora.engine.process_set import ProcessSet
from hora.errors import MismatchError, UsageError
from hora.ops import host
from hora.ops.resolve import Reduction, check_rows, equal_splits, scattered_rows
from hora.ops.started import Started
from hora.transport.base import Kind, ReduceOp

__all__ = ["Call", "splits_in_program"]

Array = np.ndarray[Any, np.dtype[Any]]
Shape = tuple[int, ...]

_AVERAGE = Reduction(ReduceOp.AVERAGE)


@dataclass(frozen=True, slots=True)
class Call:
    """One collective. Of those that gather rows, each result is followed by how many rows came from each rank.

    >>> from hora.engine.process_set import global_process_set
    >>> Call(Kind.BROADCAST, "x", global_process_set, root=0).shapes([(2, 3)])
    [(2, 3)]
    """

    kind: Kind
    name: str | None
    process_set: ProcessSet
    line: str = ""  # of the user's source
    how: Reduction = _AVERAGE
    root: int = -1
    splits: tuple[int, ...] | None = None
    grouped: bool = False
    rows: tuple[tuple[int, ...], ...] = ()  # allgather: those of each rank, where they are known to differ

    @property
    def gathers(self) -> bool:
        """Whether results have as many rows as the ranks bring."""
        return self.kind in (Kind.ALLGATHER, Kind.ALLTOALL)

    @property
    def elementwise(self) -> bool:
        """Whether results are as the inputs, so that they can be written over them."""
        return self.kind in (Kind.ALLREDUCE, Kind.BROADCAST)

    def named(self, suffix: str, **changed: Any) -> Call:
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

    def start(self, arrays: Sequence[Array], into: Sequence[Array] | None = None) -> Started[list[Array]]:
        """Submit it. ``into`` is where the results of an elementwise one are to be written."""
        with submitted_from(self.line):
            return self._start(arrays, into)

    def _start(self, arrays: Sequence[Array], into: Sequence[Array] | None) -> Started[list[Array]]:
        name, ranks, grouped = self.name, self.process_set, self.grouped
        match self.kind:
            case Kind.ALLREDUCE:
                return host.allreduce(arrays, self.how, name, ranks, grouped=grouped, into=into)
            case Kind.BROADCAST:
                return host.broadcast(arrays, self.root, name, ranks, into=into)
            case Kind.REDUCESCATTER:
                return host.reducescatter(arrays, self.how, name, ranks, grouped=grouped)
            case Kind.ALLGATHER:
                return host.allgather(arrays, name, ranks, grouped=grouped).then(_with_rows)
            case _:
                return host.alltoall(arrays[0], self.splits, name, ranks).then(lambda one: _with_rows([one]))

    def carry_out(self, arrays: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Do it, and fill ``outputs``, whose shapes were fixed when the program was compiled."""
        if self.elementwise:
            self.start(arrays, outputs).result()
            return
        results = self.start(arrays).result()
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


def _with_rows(gathered: Sequence[host.Gathered]) -> list[Array]:
    return [part for g in gathered for part in (g.array, np.array(g.rows, np.int32))]


def splits_in_program() -> UsageError:
    """The error for an alltoall whose result has no shape before it is carried out."""
    return UsageError(
        "alltoall with splits under jit. How many rows come depends on the other ranks, and the shape of a result is"
        " fixed when the program is compiled. Call it outside jit, or leave splits out and send equally many."
    )
