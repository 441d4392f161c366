"""A collective as data: everything about one but its tensors.

The forms of a front-end (``ops.forms``) make a ``Call`` of what the user said, and ``ops.operation`` carries it out. A
framework that traces programs records it, and may carry it out many times, elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from hora.engine.backend import OperationOutcome
from hora.engine.process_set import ProcessSet
from hora.ops.compression import GradientCompressor
from hora.types import Kind, ReduceOp, Reduction, Rows

__all__ = ["Call", "Results"]

T = TypeVar("T")


class Call(msgspec.Struct, frozen=True):
    """One collective; ``how`` only matters if it reduces, ``root`` if it broadcasts, ``splits`` to an alltoall. Splits
    are plain numbers, or whatever a framework has for numbers that are not known yet."""

    kind: Kind
    name: str | None
    process_set: ProcessSet
    how: Reduction = Reduction(ReduceOp.SUM)
    root: int = -1
    splits: Any = None
    grouped: bool = False
    memory: GradientCompressor | None = None  # which then reduces each tensor itself; allreduce of gradients only

    @property
    def function(self) -> str:
        """What the user called, as far as that is known: without ``_async``, and without a group's ``grouped_``."""
        return self.kind.name.lower()

    @property
    def elementwise(self) -> bool:
        """Whether results are as the inputs, so that they can be written over them."""
        return self.kind.rows is Rows.WHOLE


class Results(NamedTuple, Generic[T]):
    """What a collective gave: a tensor for each that was given; ``rows`` of those that gather, how many came from each
    rank, for each tensor."""

    tensors: list[T]
    rows: Sequence[Any] = ()
    outcome: OperationOutcome = OperationOutcome()
