"""Compression for TensorFlow's tensors: ``ops.compression``, with TensorFlow's casts."""

from __future__ import annotations

import tensorflow as tf

from hora.ops import compression
from hora.ops.compression import Compressor, Element, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


_ELEMENT = Element(
    lambda tensor: bool(tensor.dtype.is_floating) and tensor.dtype.size > 2,
    lambda narrow: tf.dtypes.as_dtype(narrow.name.lower()),
    tf.cast,
)


class Compression(compression.Compression, element=_ELEMENT):
    """The compressors to choose from.

    >>> small, context = Compression.bf16.compress(tf.ones(2))
    >>> small.dtype.name, Compression.bf16.decompress(small, context).dtype.name
    ('bfloat16', 'float32')
    """


FP16Compressor, BF16Compressor = Compression.fp16, Compression.bf16
