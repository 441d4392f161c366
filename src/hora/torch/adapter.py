"""Between torch's tensors and the engine's buffers: the only file that knows both.

Promises: a tensor that cannot be carried is refused here, before anything is sent, with what to do instead; what is
handed to the engine is contiguous memory, of the host or of a GPU where the backend carries that. Tensors on any other
device are staged through host memory.
"""

from __future__ import annotations

from typing import Any

import torch

from hora.errors import UsageError
from hora.transport import device as devices
from hora.types import Buffer, DType

__all__ = ["as_bits", "buffer", "dtype_of", "from_memory", "is_expanded", "laid_out"]

DTYPES: dict[torch.dtype, DType] = {getattr(torch, dtype.name.lower()): dtype for dtype in DType}

_SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def dtype_of(tensor: torch.Tensor) -> DType:
    """The engine's element type of a tensor; refuses what is not a dense tensor of a known type.

    >>> dtype_of(torch.zeros(3, dtype=torch.bfloat16)).name
    'BFLOAT16'
    """
    try:
        dtype = DTYPES[tensor.dtype]
    except (AttributeError, KeyError):
        raise _unknown_type(tensor) from None
    if tensor.layout is not torch.strided:
        raise UsageError(
            f"a tensor of layout {tensor.layout} was given. Collectives carry dense memory only. Use"
            " sparse_allreduce_async for a sparse COO tensor, or convert with .to_dense()."
        )
    return dtype


def _unknown_type(given: Any) -> UsageError:
    if not isinstance(given, torch.Tensor):
        return UsageError(
            f"a {type(given).__name__} was given where a torch.Tensor is needed. Collectives carry tensors. Use"
            " torch.as_tensor(...), or broadcast_object / allgather_object for other objects."
        )
    if given.is_complex():
        fix = "Use torch.view_as_real(tensor), and torch.view_as_complex on the result"
    elif given.dtype.is_floating_point:
        fix = "Convert with .to(torch.bfloat16) to reduce it, or .view(torch.uint8) to move it as it is"
    else:
        fix = (
            "Convert with .to(torch.int64) to reduce it, or .view() it as a signed type of its size to move it as it is"
        )
    known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
    return UsageError(f"a tensor of {given.dtype} was given. Hora carries {known}. {fix}.")


def laid_out(tensor: torch.Tensor, stays: bool) -> torch.Tensor:
    """The tensor's values, contiguous, and in host memory unless it ``stays``: the tensor itself if it is that."""
    if (tensor.is_cpu or stays) and tensor.is_contiguous() and not tensor.is_neg():
        return tensor
    if tensor.is_meta:
        raise UsageError(
            "a meta tensor was given. It has a shape but no values to send. Materialise it first, for example with"
            " module.to_empty(device=...)."
        )
    values = tensor.detach()
    return (values if stays else values.to("cpu")).resolve_neg().contiguous()


def buffer(tensor: torch.Tensor, dtype: DType, device: str = "cpu", ready: Any = None) -> Buffer:
    """The memory of a contiguous tensor; of a GPU's, ``ready`` is the event after which it may be used."""
    return Buffer(tensor.data_ptr(), dtype, tuple(tensor.shape), tensor, device, ready)


def from_memory(memory: Any, dtype: torch.dtype, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """A tensor over memory that the engine allocated; no copy on the host, nor on a GPU.

    >>> from_memory(bytearray(8), torch.float32, (2, 1), torch.device("cpu")).tolist()
    [[0.0], [0.0]]
    """
    if isinstance(memory, torch.Tensor):
        devices.keep(memory)  # it was the mover's stream's; now the caller's uses it
        return memory.view(dtype).reshape(shape).to(device)
    if not memoryview(memory).nbytes:  # torch.frombuffer takes no empty buffer
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.frombuffer(memory, dtype=dtype).reshape(shape).to(device)


def is_expanded(tensor: torch.Tensor) -> bool:
    """True if several elements lie at one place in memory, so that nothing can be written to it element by element.

    >>> is_expanded(torch.zeros(1).expand(3)), is_expanded(torch.zeros(2, 3).t())
    (True, False)
    """
    strides = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.numel() > 1 and any(stride == 0 and size > 1 for size, stride in strides)


def as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory under an element type that can be carried, for operations that only move bytes.

    >>> as_bits(torch.zeros(2, dtype=torch.complex64)).shape
    torch.Size([2, 2])
    """
    if tensor.dtype in DTYPES:
        return tensor
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor.view(_SAME_SIZE[tensor.itemsize])
