"""Compression without memory: reduce in fewer bits than the tensor has.

A compressor is a class with two static methods, ``compress(tensor) -> (smaller, context)`` and ``decompress(smaller,
context) -> tensor``; anything with these may be passed as ``compression=``. The reduction itself happens in the
compressed type.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

__all__ = ["BF16Compressor", "Compressor", "FP16Compressor", "NoneCompressor"]


class Compressor(Protocol):
    """What ``compression=`` takes."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The tensor to send, and whatever is needed to undo it."""

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The received tensor, as it was before ``compress``."""


class NoneCompressor:
    """Sends the tensor as it is."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor


class _Cast:
    """Sends floating-point tensors wider than 16 bits as a 16-bit type; leaves all others alone."""

    dtype: torch.dtype

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        if tensor.dtype.is_floating_point and tensor.dtype.itemsize > 2:
            return tensor.to(cls.dtype), tensor.dtype
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor if ctx is None else tensor.to(ctx)


class FP16Compressor(_Cast):
    """Reduces in float16: 10 bits of fraction, overflows beyond 65504.

    >>> smaller, context = FP16Compressor.compress(torch.ones(2))
    >>> smaller.dtype, FP16Compressor.decompress(smaller, context).dtype
    (torch.float16, torch.float32)
    """

    dtype = torch.float16


class BF16Compressor(_Cast):
    """Reduces in bfloat16: float32's range with 7 bits of fraction."""

    dtype = torch.bfloat16
