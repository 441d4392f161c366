"""Compression without memory, for torch's tensors: ``ops.compression``, with torch's casts.

The reduction itself happens in the compressed type; of float32 tensors on several hosts, only that between hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hora.engine.backend import Backend
from hora.ops.compression import Element, cast_of
from hora.types import DType

__all__ = ["TORCH_ELEMENT", "type_between_hosts"]


TORCH_ELEMENT = Element(
    lambda tensor: tensor.dtype.is_floating_point and tensor.dtype.itemsize > 2,
    lambda narrow: getattr(torch, narrow.name.lower()),
    torch.Tensor.to,
)


def type_between_hosts(compression: Any, tensors: Sequence[torch.Tensor], backend: Backend) -> DType | None:
    """The type that this compression means, if the backend itself rounds to it, only between hosts: then a tensor is
    to be sent as it is, with ``Reduction.wire``. None where the compressor has to do it.
    """
    if not backend.narrows or (cast := cast_of(compression)) is None:
        return None
    wide = all(tensor.dtype is torch.float32 and tensor.is_cpu for tensor in tensors)
    return cast.narrow if wide else None
