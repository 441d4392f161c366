"""In-place allreduces that are repeated under the same name: what was worked out the first time is looked up.

A training step makes the same calls with the same arguments again and again. The first call goes the ordinary way; then
the request is kept under the call's arguments, and the next one is a look-up and one call into the C core.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.graph import increment_version

from hora.engine import handle, session
from hora.engine.process_set import ProcessSet
from hora.ops.resolve import Reduction
from hora.torch.adapter import DTYPES
from hora.transport.base import Kind

__all__ = ["find", "remember", "run", "start"]

_MOST = 4096


def find(tensor: torch.Tensor, call: tuple[Any, ...]) -> Any:
    """What was kept for this ``call`` (the name and all other arguments) on such a tensor; None if nothing was."""
    try:
        known = session.current.repeated[(*call, tensor.dtype, tensor.shape)]  # type: ignore[union-attr]
        if tensor.requires_grad or not tensor.is_cpu or not tensor.is_contiguous() or tensor.is_neg():
            return None
    except (KeyError, AttributeError, TypeError, RuntimeError):  # new, not initialised, no tensor, a sparse one
        return None
    return known


def run(known: Any, tensor: torch.Tensor) -> torch.Tensor:
    """Carry it out; returns when it is done."""
    increment_version(tensor)
    address = tensor.data_ptr()
    known(address, address)
    return tensor


def start(known: Any, tensor: torch.Tensor) -> int:
    """Begin it; a handle."""
    increment_version(tensor)
    address = tensor.data_ptr()
    return handle.new(session.engine(), known.start(address, address, tensor), lambda outcome: tensor)


def remember(tensor: torch.Tensor, call: tuple[Any, ...], how: Reduction, process_set: ProcessSet) -> None:
    """Keep what the ordinary way worked out for this call, if the backend can repeat it and the tensor is simple."""
    engine, name = session.current, call[0]
    immediate = getattr(engine.backend, "immediate", None) if engine is not None else None
    if engine is None or immediate is None or name is None or not tensor.is_cpu:
        return
    if len(engine.repeated) >= _MOST:
        engine.repeated.clear()
    request = engine.request(
        Kind.ALLREDUCE, name, ((DTYPES[tensor.dtype], tuple(tensor.shape)),), how.op, -1, how.prescale, how.postscale,
        None, process_set, "cpu", False,
    )  # fmt: skip
    engine.repeated[(*call, tensor.dtype, tensor.shape)] = immediate(request)
