"""Compression for MXNet's arrays: ``ops.compression``, with MXNet's casts. It has no arithmetic for bfloat16."""

from __future__ import annotations

from typing import Any

import numpy as np

from hora.ops import compression
from hora.ops.compression import Compressor, NoneCompressor
from hora.types import DType

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class _Element:
    @staticmethod
    def is_wide(tensor: Any) -> bool:
        dtype = np.dtype(tensor.dtype)
        return bool(dtype.kind == "f") and dtype.itemsize > 2

    @staticmethod
    def dtype(narrow: DType) -> Any:
        return None if narrow is DType.BFLOAT16 else narrow.name.lower()

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        return tensor.astype(dtype)


class Compression(compression.Compression, element=_Element):
    """The compressors to choose from."""


FP16Compressor = Compression.fp16
