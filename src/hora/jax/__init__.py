"""Hora for JAX: Horovod's names, for functions and trees.

>>> import jax, jax.numpy as jnp
>>> import hora.jax as hvd
>>> hvd.init()
>>> float(jax.jit(lambda x: hvd.allreduce(x, name="x"))(jnp.float32(3)))    # alone: one rank
3.0
>>> hvd.shutdown()

The files: ``collectives`` (the functions), ``call`` (one of them as data), ``compiled`` (as a step of a program),
``gradients`` (theirs), ``adapter`` (arrays to memory), ``compression``, ``functions`` (gradients, parameters),
``optimizer`` (for optax, and only imported if it is asked for).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import jax as _jax  # noqa: F401
except ImportError as _error:
    raise ImportError(
        f"hora.jax needs JAX, which is missing here ({_error}). Install it with: pip install 'hora[jax]', or with: pip"
        " install jax optax."
    ) from _error

from hora import basics as _basics
from hora.basics import *  # noqa: F403
from hora.engine.handle import poll, synchronize
from hora.errors import *  # noqa: F403  # said again for type checkers: a star's star is not followed
from hora.jax import collectives as _collectives
from hora.jax.collectives import *  # noqa: F403
from hora.jax.compression import Compression
from hora.jax.functions import allreduce_gradients, broadcast_parameters
from hora.jax.functions import init as init
from hora.jax.functions import shutdown as shutdown
from hora.ops.later import later as _later
from hora.ops.objects import allgather_object, broadcast_object

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "allgather_object",
    "allreduce_gradients",
    "broadcast_object",
    "broadcast_parameters",
    "poll",
    "synchronize",
]
__all__ += _basics.__all__
__all__ += _collectives.__all__

if TYPE_CHECKING:
    from hora.jax.optimizer import DistributedOptimizer as DistributedOptimizer
else:
    __getattr__, __dir__ = _later(__name__, {"DistributedOptimizer": ".optimizer", "elastic": ".elastic"})
