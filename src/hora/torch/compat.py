"""What Hora reaches into PyTorch for, besides its public interface: each with why."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import torch
from torch._compile import _disable_dynamo as disable_dynamo
from torch.autograd.graph import increment_version

__all__ = ["disable_dynamo", "is_gradscaler_asking", "touch"]

# disable_dynamo: ``torch.compiler.disable`` imports all of dynamo. This, which torch itself uses on import, does so
# only when something is compiled.

touch: Callable[[Sequence[torch.Tensor]], None] = getattr(torch._C, "_increment_version", increment_version)
"""``increment_version`` without its look at what it was given. Why: every line counts in a small allreduce."""


def is_gradscaler_asking() -> bool:
    """Whether the function that asked the caller of this is ``GradScaler``, which is about to look for inf and nan.

    Why: it looks at ``optimizer.param_groups``, and at gradients that are still being reduced unless somebody waits for
    them first. It has no hook, and optimizers have none for it; so it is known by the name of the method that asks.
    """
    return sys._getframe(2).f_code.co_name == "_unscale_grads_"
