"""``horovod.torch`` is ``hora.torch``."""

from __future__ import annotations

import hora.torch as _hora
from hora.torch import *  # noqa: F403

from . import compression, elastic, functions, mpi_ops, optimizer, sync_batch_norm  # reached as attributes by scripts
from .functions import broadcast_optimizer_state as broadcast_optimizer_state

__all__ = [*_hora.__all__, "compression", "elastic", "functions", "mpi_ops", "optimizer", "sync_batch_norm"]
