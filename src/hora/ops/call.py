"""A collective as data: everything about one but its tensors.

The forms of a front-end (``ops.forms``) make a ``Call`` of what the user said, and a framework carries it out. One that
traces programs records it, and may carry it out many times, elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hora.engine.backend import UnderWay
from hora.engine.process_set import ProcessSet
from hora.ops import host
from hora.ops.compression import GradientCompressor
from hora.ops.operation import GatheredRows
from hora.types import Kind, ReduceOp, Reduction

__all__ = ["Call"]

Array = np.ndarray[Any, np.dtype[Any]]

_AVERAGE = Reduction(ReduceOp.AVERAGE)


@dataclass(frozen=True, slots=True)
class Call:
    """One collective; ``how`` only matters if it reduces, ``root`` if it broadcasts, ``splits`` to an alltoall."""

    kind: Kind
    name: str | None
    process_set: ProcessSet
    how: Reduction = _AVERAGE
    root: int = -1
    splits: tuple[int, ...] | None = None
    grouped: bool = False
    memory: GradientCompressor | None = None  # which then reduces each tensor itself; allreduce of gradients only

    @property
    def gathers(self) -> bool:
        """Whether results have as many rows as the ranks bring."""
        return self.kind in (Kind.ALLGATHER, Kind.ALLTOALL)

    @property
    def elementwise(self) -> bool:
        """Whether results are as the inputs, so that they can be written over them."""
        return self.kind in (Kind.ALLREDUCE, Kind.BROADCAST)

    def start(self, arrays: Sequence[Array], into: Sequence[Array] | None = None) -> UnderWay[list[Array]]:
        """Submit it. ``into`` is where the results of an elementwise one are to be written. Of those that gather rows,
        each result is followed by how many rows came from each rank.
        """
        name, ranks, grouped = self.name, self.process_set, self.grouped
        if self.memory is not None:
            assert name is not None
            return host.compressed(arrays, self.memory, self.how.op, name, ranks)
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


def _with_rows(gathered: Sequence[GatheredRows[Array]]) -> list[Array]:
    return [part for g in gathered for part in (g.tensor, np.array(g.rows, np.int32))]
