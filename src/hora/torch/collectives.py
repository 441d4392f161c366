"""The collectives of ``hora.torch``: every form in ``ops.table``, made from it. The stub beside has their types."""

from __future__ import annotations

import torch

from hora.ops.dialects import DIALECTS
from hora.ops.forms import make
from hora.torch.compression import Compression, Compressor
from hora.torch.forms import TorchForms, allreduce_, allreduce_async_

__all__ = make(
    DIALECTS["torch"], TorchForms(), __name__, (allreduce_, allreduce_async_),
    torch=torch, Compression=Compression, Compressor=Compressor,
)  # fmt: skip
