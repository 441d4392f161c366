"""Compression: reduce in fewer bits than the array has. MXNet has no arithmetic for bfloat16, so there is only fp16."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


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


class FP16Compressor:
    """Reduces floating-point arrays in float16: 10 bits of fraction, overflows beyond 65504."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        dtype = np.dtype(tensor.dtype)
        return (tensor.astype("float16"), dtype) if dtype.kind == "f" and dtype.itemsize > 2 else (tensor, None)

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor if ctx is None else tensor.astype(ctx)


class Compression:
    """The compressors to choose from."""

    none = NoneCompressor
    fp16 = FP16Compressor
