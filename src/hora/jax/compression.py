"""Compression: reduce in fewer bits than the array has.

A compressor is a class with two static methods, ``compress(array) -> (smaller, context)`` and ``decompress(smaller,
context) -> array``; anything with these may be passed as ``compression=``. The reduction itself happens in the
compressed type. Compiled programs fuse the conversions with what comes before and after them.
"""

from __future__ import annotations

from typing import Any, Protocol

import jax.numpy as jnp

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class Compressor(Protocol):
    """What ``compression=`` takes."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The array to send, and whatever is needed to undo it."""

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The received array, as it was before ``compress``."""


class NoneCompressor:
    """Sends the array as it is."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor


class _Cast:
    """Sends floating-point arrays wider than 16 bits as a 16-bit type; leaves all others alone."""

    dtype: Any

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        if jnp.issubdtype(tensor.dtype, jnp.floating) and tensor.dtype.itemsize > 2:
            return tensor.astype(cls.dtype), tensor.dtype
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor if ctx is None else tensor.astype(ctx)


class FP16Compressor(_Cast):
    """Reduces in float16: 10 bits of fraction, overflows beyond 65504."""

    dtype = jnp.float16


class BF16Compressor(_Cast):
    """Reduces in bfloat16: float32's range with 7 bits of fraction."""

    dtype = jnp.bfloat16


class Compression:
    """The compressors to choose from.

    >>> smaller, context = Compression.bf16.compress(jnp.ones(2))
    >>> smaller.dtype.name, Compression.bf16.decompress(smaller, context).dtype.name
    ('bfloat16', 'float32')
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
