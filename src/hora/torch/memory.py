"""Tensors in memory that all workers of the host share.

An in-place allreduce of such tensors copies nothing: each worker sums its share where it lies. It costs less than one
memcpy of the tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from hora.engine import session

__all__ = ["shared_empty"]


def shared_empty(*size: int | Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
    """An uninitialised tensor that the host's workers share; ordinary memory where nothing can be shared.

    It is used like any other. The memory is given back with the last tensor that uses it, and at ``shutdown()`` it
    becomes private to this process.

    >>> import hora.torch as hvd
    >>> hvd.init()
    >>> hvd.allreduce_(hvd.shared_empty(2, 3).fill_(1.0), name="x", op=hvd.Sum)
    tensor([[1., 1., 1.],
            [1., 1., 1.]])
    >>> hvd.shutdown()
    """
    shape = tuple(size[0]) if len(size) == 1 and isinstance(size[0], Sequence) else size
    dtype = dtype or torch.get_default_dtype()
    backend = session.engine().backend
    nbytes = math.prod(shape) * dtype.itemsize  # type: ignore[arg-type]
    memory = backend.allocate(nbytes) if nbytes else None
    if memory is None:
        return torch.empty(shape, dtype=dtype, device="cpu")  # type: ignore[arg-type]
    return torch.frombuffer(memory, dtype=dtype).reshape(shape)  # type: ignore[arg-type]
