"""Reductions by the C core where it is built, else by numpy (``arithmetic``): the same bits, at another speed."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from hora.transport import arithmetic, shm
from hora.transport.arithmetic import Array
from hora.types import DType, ReduceOp

__all__ = ["narrow_at", "reduce_at", "reduce_parts", "widen_at"]


def reduce_at(
    target: int, sources: Sequence[int], count: int, dtype: DType, op: ReduceOp, prescale: float, postscale: float,
    divisor: int,
) -> None:  # fmt: skip
    """Combine ``count`` elements at each of these addresses, in order, by the C core. Lets go of the GIL."""
    by = divisor if op is ReduceOp.AVERAGE else 1
    places = (ctypes.c_void_p * len(sources))(*sources)
    shm.load().reduce(target, places, len(sources), count, dtype, op, prescale, postscale, by)


def narrow_at(target: int, source: int, count: int, dtype: DType) -> None:
    """Round float32 numbers at an address to FLOAT16 or BFLOAT16 at another, by the C core. Lets go of the GIL."""
    shm.load().narrow(target, source, count, dtype)


def widen_at(target: int, source: int, count: int, dtype: DType) -> None:
    """The reverse: float32 numbers from those of a ``dtype`` of 16 bits."""
    shm.load().widen(target, source, count, dtype)


def reduce_parts(
    parts: Sequence[Array], dtype: DType, op: ReduceOp, prescale: float, postscale: float, divisor: int
) -> Array:
    """Combine the ranks' parts, in rank order. Parts and result hold ``dtype.numpy`` elements. Lets go of the GIL.

    >>> reduce_parts([np.array([100, -7], "int8"), np.array([100, 0], "int8")], DType.INT8, ReduceOp.AVERAGE, 1, 1, 2)
    array([100,  -3], dtype=int8)
    """
    if not shm.available() or not all(part.flags.c_contiguous for part in parts):
        return arithmetic.reduce_parts(parts, dtype, op, prescale, postscale, divisor)
    total = np.empty_like(parts[0])
    addresses = [part.ctypes.data for part in parts]
    reduce_at(total.ctypes.data, addresses, total.size, dtype, op, prescale, postscale, divisor)
    return total
