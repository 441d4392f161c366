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

from typing import TYPE_CHECKING, Any

try:
    import jax as _jax  # noqa: F401
except ImportError as _error:
    raise ImportError(
        f"hora.jax needs JAX, which is missing here ({_error}). Install it with: pip install 'hora[jax]', or with: pip"
        " install jax optax."
    ) from _error

from hora.engine.handle import poll, synchronize
from hora.engine.preempt import PREEMPTED_EXIT_CODE, preempted
from hora.engine.process_set import ProcessSet, add_process_set, global_process_set, remove_process_set
from hora.engine.session import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    size,
    start_timeline,
    stop_timeline,
)
from hora.errors import (
    DeadlockError,
    DivergenceError,
    DuplicateNameError,
    EnvironmentUnfit,
    HoraError,
    HorovodInternalError,
    HostsUpdatedInterrupt,
    MismatchError,
    NonFiniteError,
    NotInitializedError,
    NotMemberError,
    PeerLostError,
    ShutDownError,
    StallError,
    UnsupportedError,
    UsageError,
)
from hora.jax.collectives import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    allgather,
    allgather_async,
    allreduce,
    allreduce_async,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_async,
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_async,
    grouped_reducescatter,
    grouped_reducescatter_async,
    join,
    reducescatter,
    reducescatter_async,
)
from hora.jax.compression import Compression
from hora.jax.functions import allreduce_gradients, broadcast_parameters, init, shutdown
from hora.ops.objects import allgather_object, broadcast_object

if TYPE_CHECKING:
    from hora.jax.optimizer import DistributedOptimizer

__all__ = [
    "PREEMPTED_EXIT_CODE",
    "Adasum",
    "Average",
    "Compression",
    "DeadlockError",
    "DistributedOptimizer",
    "DivergenceError",
    "DuplicateNameError",
    "EnvironmentUnfit",
    "HoraError",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "Max",
    "Min",
    "MismatchError",
    "NonFiniteError",
    "NotInitializedError",
    "NotMemberError",
    "PeerLostError",
    "ProcessSet",
    "Product",
    "ShutDownError",
    "StallError",
    "Sum",
    "UnsupportedError",
    "UsageError",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_async",
    "allreduce_gradients",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_async",
    "broadcast_object",
    "broadcast_parameters",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_async",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "preempted",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]

if not TYPE_CHECKING:  # a type checker has seen the import above, and is to complain about what there is not

    def __getattr__(name: str) -> Any:
        if name != "DistributedOptimizer":
            raise AttributeError(f"module 'hora.jax' has no attribute {name!r}")
        from hora.jax.optimizer import DistributedOptimizer

        globals()[name] = DistributedOptimizer
        return DistributedOptimizer


def __dir__() -> list[str]:
    return [*globals(), "DistributedOptimizer"]
