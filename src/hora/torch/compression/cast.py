"""Compression without memory: reduce in fewer bits than the tensor has.

A compressor is a class with two static methods, ``compress(tensor) -> (smaller, context)`` and ``decompress(smaller,
context) -> tensor``; anything with these may be passed as ``compression=``. The reduction itself happens in the
compressed type; of float32 tensors on several hosts, only that between hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from hora.engine.backend import Backend
from hora.torch.adapter import DTYPES
from hora.transport.base import DType

__all__ = ["BF16Compressor", "Compressor", "FP16Compressor", "NoneCompressor", "type_between_hosts"]


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


def type_between_hosts(compression: Any, tensors: Sequence[torch.Tensor], backend: Backend) -> DType | None:
    """The type that this compression means, if the backend itself rounds to it, only between hosts: then a tensor is
    to be sent as it is, with ``Reduction.wire``. None where the compressor has to do it.
    """
    if not getattr(backend, "narrows", False) or compression not in (FP16Compressor, BF16Compressor):
        return None
    wide = all(tensor.dtype is torch.float32 and tensor.is_cpu for tensor in tensors)
    return DTYPES[compression.dtype] if wide else None


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
