"""``horovod.tensorflow`` is ``hora.tensorflow``, but for the few functions that its own modules here define."""

from __future__ import annotations

import hora.tensorflow as _hora
from hora.tensorflow import *  # noqa: F403

from ..common import older
from ..common.basics import sycl_built
from . import compression, elastic, functions, mpi_ops, sync_batch_norm  # reached as attributes by scripts
from .functions import allgather_object as allgather_object
from .functions import broadcast_object as broadcast_object
from .functions import broadcast_object_fn as broadcast_object_fn
from .mpi_ops import check_num_rank_power_of_2 as check_num_rank_power_of_2
from .mpi_ops import gpu_available as gpu_available
from .mpi_ops import handle_average_backwards_compatibility as handle_average_backwards_compatibility
from .util import _executing_eagerly as _executing_eagerly

__all__ = [*_hora.__all__, "compression", "elastic", "functions", "mpi_ops", "sycl_built", "sync_batch_norm"]

older.understand()
