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

__all__ = ["allreduce", "allreduce_async", "remember"]

_MOST = 4096

Call = tuple[Any, ...]


def allreduce(tensor: torch.Tensor, call: Call) -> bool:
    """Carry out an allreduce whose ``call`` (name and all other arguments) is known; False if it is not."""
    run = _find(tensor, call)
    if run is None:
        return False
    increment_version(tensor)
    address = tensor.data_ptr()
    run(address, address)
    return True


def allreduce_async(tensor: torch.Tensor, call: Call) -> int | None:
    """Begin it; the handle, or None if the call is not known."""
    run = _find(tensor, call)
    if run is None:
        return None
    increment_version(tensor)
    address = tensor.data_ptr()
    return handle.new(session.engine(), run.start(address, address, tensor), lambda outcome: tensor)


def _find(tensor: torch.Tensor, call: Call) -> Any:
    engine = session.current
    if engine is None:
        return None
    try:
        run = engine.repeated[call, tensor.dtype, tensor.shape]
    except (KeyError, AttributeError, TypeError):
        return None
    if tensor.requires_grad or not tensor.is_cpu or not tensor.is_contiguous() or tensor.is_neg():
        return None
    return run


def remember(tensor: torch.Tensor, call: Call, name: str | None, how: Reduction, process_set: ProcessSet) -> None:
    """Keep what the ordinary way worked out for this call, if the backend can repeat it and the tensor is simple."""
    engine = session.current
    immediate = getattr(engine.backend, "immediate", None) if engine is not None else None
    if engine is None or immediate is None or name is None or not tensor.is_cpu:
        return
    if len(engine.repeated) >= _MOST:
        engine.repeated.clear()
    request = engine.request(
        Kind.ALLREDUCE, name, ((DTYPES[tensor.dtype], tuple(tensor.shape)),), how.op, -1, how.prescale, how.postscale,
        None, process_set, "cpu", False,
    )  # fmt: skip
    engine.repeated[call, tensor.dtype, tensor.shape] = immediate(request)
