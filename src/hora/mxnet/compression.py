"""Compression for MXNet's arrays: ``ops.compression``, with MXNet's casts. It has no arithmetic for bfloat16."""

from __future__ import annotations

import numpy as np

from hora.ops import compression
from hora.ops.compression import Compressor, Element, NoneCompressor
from hora.types import DType

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


_ELEMENT = Element(
    lambda array: np.dtype(array.dtype).kind == "f" and np.dtype(array.dtype).itemsize > 2,
    lambda narrow: None if narrow is DType.BFLOAT16 else narrow.name.lower(),
    lambda array, dtype: array.astype(dtype),
)


class Compression(compression.Compression, element=_ELEMENT):
    """The compressors to choose from."""


FP16Compressor = Compression.fp16
