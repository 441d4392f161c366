"""``horovod.torch`` is ``hora.torch``."""

from __future__ import annotations

import hora.torch as _hora
from hora.torch import *  # noqa: F403

from . import compression, functions, mpi_ops  # reached as attributes by some scripts

__all__ = [*_hora.__all__, "compression", "functions", "mpi_ops"]
