"""The words that every layer speaks: kinds of operation, element types, how values are combined, and memory."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

__all__ = ["Buffer", "DType", "Kind", "ReduceOp", "Reduction", "Rows"]


class Rows(enum.Enum):
    """Which rows (the first dimension) a rank gets of a collective; the value says it in words."""

    WHOLE = "does not look at rows: a result is as large as what was given, and may be written over it"
    ALL = "those of all ranks, in rank order"
    EXCHANGED = "those that the ranks send to this one, in rank order"
    SHARE = "this rank's share"


class Kind(enum.IntEnum):
    """The kinds of operation. The numbers are the C core's.

    >>> Kind.ALLGATHER.rows.name, Kind.ALLGATHER.gathers, sorted(Kind.REDUCESCATTER.ops)
    ('ALL', True, [<ReduceOp.AVERAGE: 0>, <ReduceOp.SUM: 1>])
    """

    __hash__ = int.__hash__

    # core.h: enum kind
    ALLREDUCE = 0
    ALLGATHER = 1
    BROADCAST = 2
    ALLTOALL = 3
    REDUCESCATTER = 4
    BARRIER = 5

    @property
    def rows(self) -> Rows:
        """Which rows a rank gets. Where it is not ``WHOLE``, a scalar makes no sense."""
        return _ROWS[self]

    @property
    def gathers(self) -> bool:
        """Whether rows of several ranks come together, so that ranks may bring different numbers of them."""
        return _ROWS[self] in (Rows.ALL, Rows.EXCHANGED)

    @property
    def ops(self) -> frozenset[ReduceOp]:
        """The operations that it can combine values by; none if it only moves them."""
        return _OPS.get(self, _NO_OPS)


class ReduceOp(enum.IntEnum):
    """How values are combined. The numbers are Horovod's and the C core's."""

    __hash__ = int.__hash__  # Enum's own is Python code; these are looked up in dictionaries on every call

    # core.h: enum reduce_op
    AVERAGE = 0
    SUM = 1
    ADASUM = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5


_ROWS = {
    Kind.ALLREDUCE: Rows.WHOLE,
    Kind.ALLGATHER: Rows.ALL,
    Kind.BROADCAST: Rows.WHOLE,
    Kind.ALLTOALL: Rows.EXCHANGED,
    Kind.REDUCESCATTER: Rows.SHARE,
    Kind.BARRIER: Rows.WHOLE,
}
_NO_OPS: frozenset[ReduceOp] = frozenset()
_OPS = {
    Kind.ALLREDUCE: frozenset(ReduceOp),
    Kind.REDUCESCATTER: frozenset({ReduceOp.SUM, ReduceOp.AVERAGE}),
}


class DType(enum.IntEnum):
    """Element types. The numbers are the C core's.

    >>> DType.BFLOAT16.itemsize, DType.INT64.itemsize
    (2, 8)
    >>> DType.BFLOAT16.is_float, DType.INT8.is_float
    (True, False)
    >>> DType.BFLOAT16.numpy      # numpy has none: the raw bits
    'uint16'
    """

    __hash__ = int.__hash__

    # core.h: enum dtype
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
    def is_float(self) -> bool:
        return self in _FLOATS

    @property
    def numpy(self) -> str:
        """The numpy type that holds these bytes (``uint16`` for bfloat16)."""
        return "uint16" if self is DType.BFLOAT16 else self.name.lower()


_FLOATS = frozenset({DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64})
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


class Reduction(NamedTuple):
    """How to combine: the operation and the factors before and after it; ``wire`` is the type that values are rounded
    to between hosts, for a backend that ``narrows``."""

    op: ReduceOp
    prescale: float = 1.0
    postscale: float = 1.0
    wire: DType | None = None
