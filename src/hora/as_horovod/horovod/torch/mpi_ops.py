"""``horovod.torch.mpi_ops``: the collectives and the basics."""

from __future__ import annotations

import hora.torch as _hora
from hora.torch import *  # noqa: F403

__all__ = list(_hora.__all__)
