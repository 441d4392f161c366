"""Hora for Apache MXNet 1.9: Horovod's names, with its meanings.

MXNet was retired by its makers in 2023 and needs numpy 1.23; this is for the scripts that still run on it. The files:
``collectives``, ``adapter`` (arrays to memory), ``compression``, ``functions`` (parameters), ``optimizer``.
"""

from __future__ import annotations

try:
    import mxnet as _mxnet  # noqa: F401
except (ImportError, AttributeError) as _error:  # the latter from a numpy that is too new for it
    raise ImportError(
        f"hora.mxnet needs MXNet 1.9 and a numpy it can work with, and one of them is missing here ({_error}). Install"
        " both with: pip install mxnet==1.9.1 numpy==1.23.5"
    ) from _error

from hora import basics as _basics
from hora.basics import *  # noqa: F403
from hora.errors import *  # noqa: F403  # said again for type checkers: a star's star is not followed
from hora.mxnet import collectives as _collectives
from hora.mxnet.collectives import *  # noqa: F403
from hora.mxnet.compression import Compression
from hora.mxnet.functions import broadcast_parameters
from hora.mxnet.optimizer import DistributedOptimizer, DistributedTrainer
from hora.ops.objects import allgather_object, broadcast_object

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "DistributedTrainer",
    "allgather_object",
    "broadcast_object",
    "broadcast_parameters",
]
__all__ += _basics.__all__
__all__ += _collectives.__all__
