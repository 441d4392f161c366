"""The arithmetic of reductions in numpy, element type by element type; the C core's kernels do the same, bit by bit.

``out = ((prescale*in[0] op prescale*in[1] op …) / divisor) * postscale``, always in rank order, so that the result is
the same on every rank, in every run, fused or not. Half types are summed in float32 and rounded once. Integers are
summed in 64 bits, so a Sum wraps as its type does and an Average does not overflow, and divided toward zero. bool is
any (Sum, Average, Max) or all (Product, Min).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hora.types import Buffer, DType, ReduceOp

__all__ = ["Array", "adasum", "bytes_of", "reduce_parts", "widen"]

Array = npt.NDArray[Any]

_ACCUMULATORS: dict[DType, str] = {
    DType.FLOAT16: "float32",
    DType.BFLOAT16: "float32",
    DType.FLOAT32: "float32",
    DType.FLOAT64: "float64",
}
_COMBINE: dict[ReduceOp, Callable[..., Array]] = {
    ReduceOp.AVERAGE: np.add,
    ReduceOp.SUM: np.add,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.PRODUCT: np.multiply,
}


class _Memory:
    """Lets numpy look at an address."""

    def __init__(self, buffer: Buffer) -> None:
        self.owner = buffer.owner
        self.__array_interface__ = {
            "version": 3, "typestr": "|u1", "shape": (buffer.nbytes,), "data": (buffer.address, False),
        }  # fmt: skip


def bytes_of(buffer: Buffer) -> Array:
    """The buffer's memory as a flat array of bytes; no copy. It keeps the owner alive.

    >>> array = np.arange(3, dtype="int16")
    >>> bytes_of(Buffer(array.ctypes.data, DType.INT16, array.shape, array)).tolist()
    [0, 0, 1, 0, 2, 0]
    """
    if buffer.nbytes == 0:
        return np.empty(0, "uint8")
    return np.asarray(_Memory(buffer))


def reduce_parts(
    parts: Sequence[Array], dtype: DType, op: ReduceOp, prescale: float, postscale: float, divisor: int
) -> Array:
    """Combine the ranks' parts, in rank order. Parts and result hold ``dtype.numpy`` elements.

    >>> reduce_parts([np.array([100, -7], "int8"), np.array([100, 0], "int8")], DType.INT8, ReduceOp.AVERAGE, 1, 1, 2)
    array([100,  -3], dtype=int8)
    """
    if dtype is DType.BOOL:
        combine = np.logical_and if op in (ReduceOp.MIN, ReduceOp.PRODUCT) else np.logical_or
        truth = parts[0].astype(bool)
        for part in parts[1:]:
            combine(truth, part, out=truth)
        return truth
    combine_all = _COMBINE[op]
    with np.errstate(all="ignore"):  # infinities and overflow are the user's numbers, not our errors
        total = _scaled(widen(parts[0], dtype), prescale)
        for part in parts[1:]:
            combine_all(total, _scaled(widen(part, dtype, copy=False), prescale), out=total)
        if op is ReduceOp.AVERAGE:
            _divide(total, divisor)
        return _narrow(_scaled(total, postscale), dtype)


def adasum(parts: Sequence[Array], dtype: DType, prescale: float, postscale: float) -> Array:
    """Combine pairs of ranks, then pairs of pairs: the sum of what is orthogonal, the mean of what is parallel.

    >>> parts = [np.array(p, "float32") for p in ([1, 0], [0, 1], [2, 0], [0, 2])]
    >>> adasum(parts[:2], DType.FLOAT32, 1, 1), adasum([parts[0], parts[0]], DType.FLOAT32, 1, 1)
    (array([1., 1.], dtype=float32), array([1., 0.], dtype=float32))
    """
    vectors = [_scaled(widen(part, dtype).astype("float64"), prescale) for part in parts]
    with np.errstate(all="ignore"):
        while len(vectors) > 1:
            vectors = [_pair(a, b) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
        result = _scaled(vectors[0], postscale)
        return _narrow(result if dtype is DType.FLOAT64 else result.astype("float32"), dtype)


def widen(part: Array, dtype: DType, copy: bool = True) -> Array:
    """The elements in the type they are accumulated in; a view where that is possible and ``copy`` is False."""
    if dtype is DType.BFLOAT16:
        return (part.astype("uint32") << 16).view("float32")
    return part.astype(_ACCUMULATORS.get(dtype, "int64"), copy=copy)


def _narrow(total: Array, dtype: DType) -> Array:
    if dtype is not DType.BFLOAT16:
        return total.astype(dtype.numpy, copy=False)
    bits = total.view("uint32")
    rounded = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("uint16")  # to nearest, ties to even
    return np.where(np.isnan(total), ((bits >> 16) | 0x40).astype("uint16"), rounded)


def _scaled(values: Array, factor: float) -> Array:
    if factor == 1.0:
        return values
    if values.dtype == np.int64:
        return np.trunc(values.astype("float64") * factor).astype("int64")
    scaled: Array = values * values.dtype.type(factor)
    return scaled


def _divide(total: Array, divisor: int) -> None:
    if total.dtype == np.int64:
        if divisor > 1:
            rest = np.remainder(total, divisor)
            np.floor_divide(total, divisor, out=total)
            total += (rest != 0) & (total < 0)  # floor to truncation
    elif divisor != 1:
        np.divide(total, total.dtype.type(divisor), out=total)


def _pair(a: Array, b: Array) -> Array:
    ab, aa, bb = float(a @ b), float(a @ a), float(b @ b)
    weight_a = 1 - ab / (2 * aa) if aa > 0 else 1.0
    weight_b = 1 - ab / (2 * bb) if bb > 0 else 1.0
    result: Array = weight_a * a + weight_b * b
    return result
