"""``horovod.torch.mpi_ops``: the collectives, the basics, and the two private names that scripts reach for.

What is bound to Horovod's native library (``mpi_lib_v2``, the ``Horovod…`` autograd functions, the handle map) has no
counterpart here.
"""

from __future__ import annotations

import hora.torch as _hora
from hora.torch import *  # noqa: F403
from hora.torch import Adasum, Average, Sum

from ..common.basics import HorovodBasics
from ..common.util import (
    check_installed_version,
    get_average_backwards_compatibility_fun,
    gpu_available,
    num_rank_is_power_2,
)

_basics = HorovodBasics()
_asked = 0  # the youngest handle that poll() was asked about; handles are numbered


class _ReduceOps:
    """The operations under the names that the helper below asks for."""

    Average, Sum, Adasum = Average, Sum, Adasum


handle_average_backwards_compatibility = get_average_backwards_compatibility_fun(_ReduceOps)


def poll(handle: int) -> bool:  # type: ignore[no-redef]  # instead of Hora's
    """Whether the operation has finished; False when a new handle is first asked about.

    In Horovod nothing is finished before its background thread's next cycle, and there are scripts that take True at
    once for a sign that the call was not asynchronous. Hora may well be done by then.
    """
    global _asked
    done = _hora.poll(handle)
    if handle <= _asked:
        return done
    _asked = handle
    return False


__all__ = [
    *_hora.__all__,
    "check_installed_version",
    "get_average_backwards_compatibility_fun",
    "gpu_available",
    "handle_average_backwards_compatibility",
    "num_rank_is_power_2",
]
