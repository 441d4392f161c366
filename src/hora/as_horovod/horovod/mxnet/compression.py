"""``horovod.mxnet.compression``."""

from __future__ import annotations

from hora.mxnet.compression import Compression, Compressor, FP16Compressor, NoneCompressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]
