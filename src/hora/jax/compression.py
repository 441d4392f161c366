"""Compression for JAX's arrays: ``ops.compression``, with JAX's casts, which compiled programs fuse with their own."""

from __future__ import annotations

import jax.numpy as jnp

from hora.ops import compression
from hora.ops.compression import Compressor, Element, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


_ELEMENT = Element(
    lambda array: bool(jnp.issubdtype(array.dtype, jnp.floating)) and array.dtype.itemsize > 2,
    lambda narrow: jnp.dtype(narrow.name.lower()),
    lambda array, dtype: array.astype(dtype),
)


class Compression(compression.Compression, element=_ELEMENT):
    """The compressors to choose from.

    >>> smaller, context = Compression.bf16.compress(jnp.ones(2))
    >>> smaller.dtype.name, Compression.bf16.decompress(smaller, context).dtype.name
    ('bfloat16', 'float32')
    """


FP16Compressor, BF16Compressor = Compression.fp16, Compression.bf16
