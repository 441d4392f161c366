"""``horovod.mxnet`` is ``hora.mxnet``."""

from __future__ import annotations

import hora.mxnet as _hora
from hora.mxnet import *  # noqa: F403

from ..common.basics import sycl_built
from . import compression, functions, mpi_ops  # reached as attributes by scripts

__all__ = [*_hora.__all__, "compression", "functions", "mpi_ops", "sycl_built"]
