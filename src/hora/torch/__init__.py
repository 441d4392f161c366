"""Hora for PyTorch: Horovod's names, with its meanings.

>>> import torch
>>> import hora.torch as hvd
>>> hvd.init()
>>> hvd.allreduce(torch.tensor([1.0, 2.0]) * (hvd.rank() + 1), name="x", op=hvd.Sum)    # alone: one rank
tensor([1., 2.])
>>> hvd.synchronize(hvd.allgather_async(torch.tensor([hvd.rank()])))
tensor([0])
>>> hvd.shutdown()

The files: ``collectives`` (the functions), ``autograd`` (their gradients), ``submit`` (tensors to the engine),
``adapter`` (tensors to memory), ``compression``, ``sparse``, ``functions`` (parameters, optimizer state, objects),
``optimizer`` (and what it is made of). What not every script uses is imported when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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
from hora.torch.collectives import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
    join,
    reducescatter,
    reducescatter_async,
)
from hora.torch.compression import Compression

if TYPE_CHECKING:
    from hora.torch.functions import (
        allgather_object,
        broadcast_object,
        broadcast_optimizer_state,
        broadcast_parameters,
    )
    from hora.torch.memory import shared_empty
    from hora.torch.optimizer import DistributedOptimizer
    from hora.torch.sparse import sparse_allreduce_async
    from hora.torch.sync_batch_norm import SyncBatchNorm

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
    "SyncBatchNorm",
    "UnsupportedError",
    "UsageError",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
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
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
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
    "shared_empty",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]

_LATER = {
    "DistributedOptimizer": "optimizer",
    "SyncBatchNorm": "sync_batch_norm",
    "allgather_object": "functions",
    "broadcast_object": "functions",
    "broadcast_optimizer_state": "functions",
    "broadcast_parameters": "functions",
    "shared_empty": "memory",
    "sparse_allreduce_async": "sparse",
}


if not TYPE_CHECKING:  # a type checker has seen the imports above, and is to complain about what there is not

    def __getattr__(name: str) -> Any:
        if name not in _LATER:
            raise AttributeError(f"module 'hora.torch' has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(f"hora.torch.{_LATER[name]}"), name)
        return value


def __dir__() -> list[str]:
    return [*globals(), *_LATER]
