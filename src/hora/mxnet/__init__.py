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
    init,
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
    shutdown,
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
from hora.mxnet.collectives import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    allgather,
    allreduce,
    allreduce_,
    alltoall,
    barrier,
    broadcast,
    broadcast_,
    grouped_allgather,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_reducescatter,
    join,
    reducescatter,
)
from hora.mxnet.compression import Compression
from hora.mxnet.functions import broadcast_parameters
from hora.mxnet.optimizer import DistributedOptimizer, DistributedTrainer
from hora.ops.objects import allgather_object, broadcast_object

__all__ = [
    "PREEMPTED_EXIT_CODE",
    "Adasum",
    "Average",
    "Compression",
    "DeadlockError",
    "DistributedOptimizer",
    "DistributedTrainer",
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
    "allgather_object",
    "allreduce",
    "allreduce_",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
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
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
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
    "preempted",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
