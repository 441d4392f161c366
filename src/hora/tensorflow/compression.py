"""Compression for TensorFlow's tensors: ``ops.compression``, with TensorFlow's casts."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hora.ops import compression
from hora.ops.compression import Compressor, NoneCompressor
from hora.types import DType

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class _Element:
    @staticmethod
    def is_wide(tensor: Any) -> bool:
        return bool(tensor.dtype.is_floating) and tensor.dtype.size > 2

    @staticmethod
    def dtype(narrow: DType) -> Any:
        return tf.dtypes.as_dtype(narrow.name.lower())

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        return tf.cast(tensor, dtype)


class Compression(compression.Compression, element=_Element):
    """The compressors to choose from.

    >>> small, context = Compression.bf16.compress(tf.ones(2))
    >>> small.dtype.name, Compression.bf16.decompress(small, context).dtype.name
    ('bfloat16', 'float32')
    """


FP16Compressor, BF16Compressor = Compression.fp16, Compression.bf16
