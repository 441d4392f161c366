"""Hora for TensorFlow 2.16 and newer: Horovod's names, with its meanings, eagerly and inside ``tf.function``.

>>> import tensorflow as tf
>>> import hora.tensorflow as hvd
>>> hvd.init()
>>> hvd.allreduce(tf.constant([1.0, 2.0]) * (hvd.rank() + 1), name="x", op=hvd.Sum).numpy()    # alone: one rank
array([1., 2.], dtype=float32)
>>> hvd.shutdown()

The files: ``collectives`` (the functions), ``gradients`` (their gradients), ``graph`` (how they run, eagerly and in a
graph), ``adapter`` (tensors to arrays over the same memory), ``surface`` (what public functions have in common),
``compression``, ``functions`` (variables, objects), ``reduce`` (the gradients of a step), ``tape``, ``optimizer``,
``sync_batch_norm``, ``sessions`` (``tf.compat.v1``). What not every script uses is imported when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hora.config.env import make_tensorflow_quiet as _make_quiet

try:
    _make_quiet()
    import tensorflow as _tensorflow
except ImportError as reason:
    raise ImportError(
        "hora.tensorflow needs TensorFlow, which is not installed. Install it, for example with: pip install"
        " tensorflow-cpu (or, with Hora: pip install 'hora[tensorflow]')."
    ) from reason

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
    DuplicateNameError,
    EnvironmentUnfit,
    HoraError,
    HorovodInternalError,
    HostsUpdatedInterrupt,
    MismatchError,
    NotInitializedError,
    NotMemberError,
    PeerLostError,
    ShutDownError,
    StallError,
    UnsupportedError,
    UsageError,
)
from hora.tensorflow.collectives import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    broadcast_,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    join,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    reducescatter,
    size_op,
)
from hora.tensorflow.compression import Compression

if TYPE_CHECKING:
    from hora.tensorflow.functions import (
        allgather_object,
        broadcast_global_variables,
        broadcast_object,
        broadcast_object_fn,
        broadcast_variables,
    )
    from hora.tensorflow.optimizer import DistributedOptimizer
    from hora.tensorflow.sessions import BroadcastGlobalVariablesHook
    from hora.tensorflow.sync_batch_norm import SyncBatchNormalization
    from hora.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape

del _tensorflow

__all__ = [
    "PREEMPTED_EXIT_CODE",
    "Adasum",
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DeadlockError",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "DuplicateNameError",
    "EnvironmentUnfit",
    "HoraError",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "Max",
    "Min",
    "MismatchError",
    "NotInitializedError",
    "NotMemberError",
    "PartialDistributedGradientTape",
    "PeerLostError",
    "ProcessSet",
    "Product",
    "ShutDownError",
    "StallError",
    "Sum",
    "SyncBatchNormalization",
    "UnsupportedError",
    "UsageError",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
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
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "preempted",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]

_LATER = {
    "BroadcastGlobalVariablesHook": "sessions",
    "DistributedGradientTape": "tape",
    "DistributedOptimizer": "optimizer",
    "PartialDistributedGradientTape": "tape",
    "SyncBatchNormalization": "sync_batch_norm",
    "allgather_object": "functions",
    "broadcast_global_variables": "functions",
    "broadcast_object": "functions",
    "broadcast_object_fn": "functions",
    "broadcast_variables": "functions",
}


if not TYPE_CHECKING:  # a type checker has seen the imports above, and is to complain about what there is not

    def __getattr__(name: str) -> Any:
        if name not in _LATER:
            raise AttributeError(f"module 'hora.tensorflow' has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(f"hora.tensorflow.{_LATER[name]}"), name)
        return value


def __dir__() -> list[str]:
    return [*globals(), *_LATER]
