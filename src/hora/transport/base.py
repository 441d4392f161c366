"""What every transport speaks of: kinds of operation, element types, buffers, and the one Protocol for moving bytes.

A *mover* carries operations that are already agreed on: every member calls it with the same operations in the same
order. Agreement, fusion and naming happen one layer up, in ``engine``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

__all__ = ["Buffer", "DType", "Finish", "KeyValue", "Kind", "Mover", "ReduceOp", "StartingMover"]


class Kind(enum.IntEnum):
    """The kinds of operation. The numbers are the C core's."""

    __hash__ = int.__hash__

    ALLREDUCE = 0
    ALLGATHER = 1
    BROADCAST = 2
    ALLTOALL = 3
    REDUCESCATTER = 4
    BARRIER = 5


class ReduceOp(enum.IntEnum):
    """How values are combined. The numbers are Horovod's and the C core's."""

    __hash__ = int.__hash__  # Enum's own is Python code; these are looked up in dictionaries on every call

    AVERAGE = 0
    SUM = 1
    ADASUM = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5


class DType(enum.IntEnum):
    """Element types. The numbers are the C core's.

    >>> DType.BFLOAT16.itemsize, DType.INT64.itemsize
    (2, 8)
    >>> DType.BFLOAT16.numpy      # numpy has none: the raw bits
    'uint16'
    """

    __hash__ = int.__hash__

    UINT8 = 0
    INT8 = 1
    INT16 = 2
    INT32 = 3
    INT64 = 4
    FLOAT16 = 5
    BFLOAT16 = 6
    FLOAT32 = 7
    FLOAT64 = 8
    BOOL = 9

    @property
    def itemsize(self) -> int:
        return _ITEMSIZE[self]

    @property
    def numpy(self) -> str:
        """The numpy type that holds these bytes (``uint16`` for bfloat16)."""
        return "uint16" if self is DType.BFLOAT16 else self.name.lower()


_ITEMSIZE = (1, 1, 2, 4, 8, 2, 2, 4, 8, 1)


class Buffer(NamedTuple):
    """Contiguous memory of one tensor; ``owner`` keeps it alive while an operation uses it.

    Memory of another ``device`` than the host is only for movers that carry it, and the owner is the tensor itself;
    ``ready`` is the event on that device after which it may be used.

    >>> import numpy
    >>> array = numpy.zeros((2, 3), dtype="float32")
    >>> Buffer(array.ctypes.data, DType.FLOAT32, array.shape, array).nbytes
    24
    """

    address: int
    dtype: DType
    shape: tuple[int, ...]
    owner: object
    device: str = "cpu"
    ready: Any = None

    @property
    def elements(self) -> int:
        n = 1
        for d in self.shape:
            n *= d
        return n

    @property
    def nbytes(self) -> int:
        return self.elements * self.dtype.itemsize


class KeyValue(Protocol):
    """A store that all ranks of a generation share; by it movers find each other."""

    def set(self, key: str, value: bytes) -> None: ...

    def get(self, key: str, timeout_s: float) -> bytes | None:
        """The value, once it is set; None if it is not in time."""


class Mover(Protocol):
    """Moves bytes between the members of one process set; every method blocks until this rank's part is done.

    ``members`` are global ranks in ascending order and this rank is one of them. Buffers are CPU memory, unless the
    mover says in ``carries`` that it takes that of other devices too (``transport.nccl``). ``contributors`` are the
    members that brought data: one that has joined brings none and passes no inputs or outputs. A mover that says it
    ``narrows`` may be told a ``wire`` of 16 bits with an allreduce of FLOAT32: the type to round to between hosts.
    """

    def allreduce(
        self,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        *,
        op: ReduceOp,
        prescale: float,
        postscale: float,
        members: tuple[int, ...],
        contributors: tuple[int, ...],
        divisor: int,
    ) -> None:
        """``out = postscale * reduce(prescale * in_i) / divisor`` (``divisor`` is for AVERAGE), in rank order."""

    def allgather(self, input: Buffer, output: Buffer, *, nbytes: Sequence[int], members: tuple[int, ...]) -> None:
        """Concatenate the members' bytes; member ``i`` brings ``nbytes[i]``."""

    def broadcast(self, buffer: Buffer, output: Buffer, *, root: int, members: tuple[int, ...]) -> None:
        """Copy the root's (a global rank) buffer into every member's output."""

    def alltoall(
        self, input: Buffer, output: Buffer, *, sent: Sequence[int], received: Sequence[int], members: tuple[int, ...]
    ) -> None:
        """Send ``sent[i]`` bytes to member ``i`` and receive ``received[i]`` bytes from it, in member order."""

    def reducescatter(
        self,
        input: Buffer,
        output: Buffer,
        *,
        op: ReduceOp,
        prescale: float,
        postscale: float,
        counts: Sequence[int],
        members: tuple[int, ...],
        divisor: int,
    ) -> None:
        """Reduce, then keep only this rank's ``counts[i]`` elements."""

    def abort(self, reason: str) -> None:
        """Make an operation that is under way, and all later ones, raise soon. Called from another thread."""

    def close(self) -> None:
        """Free everything; safe to call twice and after a failure."""


Finish = Callable[[], None]  # waits for the end of what was begun


class StartingMover(Mover, Protocol):
    """A mover that can have several gatherings under way."""

    def start_allgather(
        self, input: Buffer, output: Buffer, *, nbytes: Sequence[int], members: tuple[int, ...]
    ) -> Finish:
        """Begin an allgather. All members begin theirs in the same order, and end them in that order."""
