"""``horovod.keras`` is ``hora.keras``."""

from __future__ import annotations

import functools
from importlib import import_module
from typing import Any

import hora.keras as _hora
from hora.keras import *  # noqa: F403

from ..common import older
from ..common.basics import sycl_built


@functools.wraps(_hora.DistributedOptimizer, assigned=("__module__", "__name__", "__qualname__", "__doc__"))
def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = None,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: Any = _hora.Average,
    num_groups: int = 0,
    groups: Any = None,
    **more: Any,
) -> Any:
    # In horovod.tensorflow.keras the ninth argument is backward_passes_per_step; here it is num_groups.
    return _hora.DistributedOptimizer(
        optimizer, name, device_dense, device_sparse, compression, sparse_as_dense, gradient_predivide_factor, op,
        num_groups=num_groups, groups=groups, **more,
    )  # fmt: skip


del DistributedOptimizer.__wrapped__  # or its signature would be shown

# Hora has modules of these names too, which an ordinary import would find in their place.
callbacks, elastic = (import_module(f"{__name__}.{name}") for name in ("callbacks", "elastic"))

__all__ = [*_hora.__all__, "callbacks", "elastic", "sycl_built"]

older.understand()
older.understand_sessions()
