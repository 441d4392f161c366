"""``horovod.torch`` is ``hora.torch``, but for the few functions that its own modules here define."""

from __future__ import annotations

from importlib import import_module

import hora.torch as _hora
from hora.torch import *  # noqa: F403

from ..common.basics import sycl_built
from . import compression, functions, mpi_ops, optimizer, sync_batch_norm  # reached as attributes by scripts
from .functions import allgather_object as allgather_object
from .functions import broadcast_object as broadcast_object
from .functions import broadcast_optimizer_state as broadcast_optimizer_state
from .mpi_ops import poll as poll
from .optimizer import DistributedOptimizer as DistributedOptimizer

elastic = import_module(f"{__name__}.elastic")  # Hora has a module of this name too

__all__ = [
    *_hora.__all__,
    "compression",
    "elastic",
    "functions",
    "mpi_ops",
    "optimizer",
    "sycl_built",
    "sync_batch_norm",
]
