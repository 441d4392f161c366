"""``horovod.tensorflow.mpi_ops``: the collectives, the basics, and what scripts reach for besides."""

from __future__ import annotations

import hora.tensorflow as _hora
from hora.tensorflow import *  # noqa: F403
from hora.tensorflow import Adasum, Average, Sum

from ..common.basics import HorovodBasics
from ..common.util import get_average_backwards_compatibility_fun, gpu_available, num_rank_is_power_2

_basics = HorovodBasics()
check_num_rank_power_of_2 = num_rank_is_power_2


class _ReduceOps:
    """The operations under the names that the helper below asks for."""

    Average, Sum, Adasum = Average, Sum, Adasum


handle_average_backwards_compatibility = get_average_backwards_compatibility_fun(_ReduceOps)

__all__ = [
    *_hora.__all__,
    "check_num_rank_power_of_2",
    "gpu_available",
    "handle_average_backwards_compatibility",
    "num_rank_is_power_2",
]
