"""Compression: fewer bits for a tensor while it is reduced.

Classes without memory, with Horovod's interface: ``compress`` gives what to send and what ``decompress`` needs to know.
The sum is computed in the smaller type.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class Compressor:
    """What all of them are: ``small`` is the type that floating-point tensors are sent in; None leaves them."""

    small: Any = None

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """What to send, and the type it had."""
        if cls.small is None or not tensor.dtype.is_floating:
            return tensor, tensor.dtype
        return tf.cast(tensor, cls.small), tensor.dtype

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        """The result in the type that was given."""
        return tensor if tensor.dtype == ctx else tf.cast(tensor, ctx)


class NoneCompressor(Compressor):
    """Nothing is changed."""


class FP16Compressor(Compressor):
    """IEEE half precision: 11 significant bits, and sums above 65504 overflow."""

    small = tf.float16


class BF16Compressor(Compressor):
    """The upper half of float32: its range, with 8 significant bits."""

    small = tf.bfloat16


class Compression:
    """The compressors to choose from.

    >>> small, context = Compression.bf16.compress(tf.ones(2))
    >>> small.dtype.name, Compression.bf16.decompress(small, context).dtype.name
    ('bfloat16', 'float32')
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
