"""``horovod.mxnet.mpi_ops``: the collectives and the basics."""

from __future__ import annotations

import hora.mxnet as _hora
from hora.mxnet import *  # noqa: F403

from ..common.basics import HorovodBasics

_basics = HorovodBasics()

__all__ = list(_hora.__all__)
