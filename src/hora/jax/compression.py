"""Compression for JAX's arrays: ``ops.compression``, with JAX's casts, which compiled programs fuse with their own."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from hora.ops import compression
from hora.ops.compression import Compressor, NoneCompressor
from hora.types import DType

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class _Element:
    @staticmethod
    def is_wide(tensor: Any) -> bool:
        return bool(jnp.issubdtype(tensor.dtype, jnp.floating)) and tensor.dtype.itemsize > 2

    @staticmethod
    def dtype(narrow: DType) -> Any:
        return jnp.dtype(narrow.name.lower())

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        return tensor.astype(dtype)


class Compression(compression.Compression, element=_Element):
    """The compressors to choose from.

    >>> smaller, context = Compression.bf16.compress(jnp.ones(2))
    >>> smaller.dtype.name, Compression.bf16.decompress(smaller, context).dtype.name
    ('bfloat16', 'float32')
    """


FP16Compressor, BF16Compressor = Compression.fp16, Compression.bf16
