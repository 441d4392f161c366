"""In-place allreduces that are repeated under the same name: what was worked out the first time is looked up.

A training step makes the same calls with the same arguments again and again. The first call goes the ordinary way; then
the request is kept under the call's arguments, and the next one is a look-up and one call into the C core. What is here
is the whole cost of a small operation: every line counts.
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

__all__ = ["Call", "again", "remember", "start"]

_MOST = 4096
_NOT_KNOWN = (KeyError, AttributeError, TypeError, RuntimeError)  # new, not initialised, no tensor, a sparse one
# The same as increment_version, without its look at what it was given.
_touch = getattr(torch._C, "_increment_version", increment_version)

Call = tuple[Any, ...]
"""Everything a call was made with besides the tensor: name, op, average, both factors, and the process set's number."""


def again(tensor: torch.Tensor, call: Call) -> bool:
    """Carry out the allreduce that was kept for this call on such a tensor; False if nothing was kept."""
    try:
        known = session.current.repeated[call, tensor.dtype, tensor.shape]  # type: ignore[union-attr]
        if tensor.requires_grad or not tensor.is_cpu or not tensor.is_contiguous() or tensor.is_neg():
            return False
    except _NOT_KNOWN:
        return False
    _touch((tensor,))
    address = tensor.data_ptr()
    if code := known.again(known.ready, address):
        known.finish(code, address)
    return True


def start(tensor: torch.Tensor, call: Call) -> int | None:
    """Begin it: a handle, or None if nothing was kept."""
    try:
        known = session.current.repeated[call, tensor.dtype, tensor.shape]  # type: ignore[union-attr]
        if tensor.requires_grad or not tensor.is_cpu or not tensor.is_contiguous() or tensor.is_neg():
            return None
    except _NOT_KNOWN:
        return None
    _touch((tensor,))
    return handle.new(session.engine(), known.start(tensor.data_ptr(), tensor), lambda outcome: tensor)


def remember(tensor: torch.Tensor, call: Call, how: Reduction, process_set: ProcessSet) -> None:
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
    engine.repeated[call, tensor.dtype, tensor.shape] = immediate(request)
