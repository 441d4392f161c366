"""Compression without memory, for torch's tensors: ``ops.compression``, with torch's casts.

The reduction itself happens in the compressed type; of float32 tensors on several hosts, only that between hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hora.engine.backend import Backend
from hora.ops.compression import cast_of
from hora.types import DType

__all__ = ["TorchElement", "type_between_hosts"]


class TorchElement:
    """``ops.compression.Element``: how torch casts."""

    @staticmethod
    def is_wide(tensor: torch.Tensor) -> bool:
        return tensor.dtype.is_floating_point and tensor.dtype.itemsize > 2

    @staticmethod
    def dtype(narrow: DType) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, narrow.name.lower())
        return dtype

    @staticmethod
    def cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return tensor.to(dtype)


def type_between_hosts(compression: Any, tensors: Sequence[torch.Tensor], backend: Backend) -> DType | None:
    """The type that this compression means, if the backend itself rounds to it, only between hosts: then a tensor is
    to be sent as it is, with ``Reduction.wire``. None where the compressor has to do it.
    """
    if not backend.narrows or (cast := cast_of(compression)) is None:
        return None
    wide = all(tensor.dtype is torch.float32 and tensor.is_cpu for tensor in tensors)
    return cast.narrow if wide else None
