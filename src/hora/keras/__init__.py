"""Hora for Keras 3, on TensorFlow, PyTorch and JAX alike: Horovod's names, with its meanings.

>>> import keras
>>> import hora.keras as hvd
>>> hvd.init()
>>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
>>> optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1 * hvd.size()))
>>> model.compile(optimizer=optimizer, loss="mse")
>>> images, labels = keras.ops.ones((4, 2)), keras.ops.ones((4, 1))
>>> history = model.fit(images, labels, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
>>> hvd.shutdown()

The files: ``optimizer`` (``DistributedOptimizer``), ``gradients`` (what is done with those of a step), ``adapter`` (the
backends), ``collectives`` (on values), ``functions`` (variables and files), ``callbacks``, ``elastic``. They, and the
front-end of the backend, are imported when they are first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

try:
    import keras as _keras
except ImportError as _error:
    raise ImportError(
        f"hora.keras needs Keras 3 and the framework it runs on, and one of them is missing here ({_error}). Install"
        " them, for example with: pip install 'hora[keras]' tensorflow-cpu; and say which framework with"
        " KERAS_BACKEND=tensorflow, torch or jax."
    ) from _error
if int(_keras.__version__.split(".")[0]) < 3:
    raise ImportError(
        f"hora.keras needs Keras 3, and Keras {_keras.__version__} is installed here. Update it with: pip install"
        " 'keras>=3.4'; or stay with Keras 2 and train with hora.tensorflow.DistributedGradientTape."
    )

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
from hora.transport.base import ReduceOp as _ReduceOp

if TYPE_CHECKING:
    from hora.keras import callbacks, elastic
    from hora.keras.collectives import allgather, allreduce, barrier, broadcast, reducescatter
    from hora.keras.functions import broadcast_global_variables, broadcast_model, broadcast_variables, load_model
    from hora.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer
    from hora.ops.objects import allgather_object, broadcast_object

    Compression: Any

Average, Sum, Adasum = _ReduceOp.AVERAGE, _ReduceOp.SUM, _ReduceOp.ADASUM
Min, Max, Product = _ReduceOp.MIN, _ReduceOp.MAX, _ReduceOp.PRODUCT

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
    "PartialDistributedOptimizer",
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
    "barrier",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_model",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "load_model",
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

_LATER = {
    "DistributedOptimizer": "keras.optimizer",
    "PartialDistributedOptimizer": "keras.optimizer",
    "allgather": "keras.collectives",
    "allgather_object": "ops.objects",
    "allreduce": "keras.collectives",
    "barrier": "keras.collectives",
    "broadcast": "keras.collectives",
    "broadcast_global_variables": "keras.functions",
    "broadcast_model": "keras.functions",
    "broadcast_object": "ops.objects",
    "broadcast_variables": "keras.functions",
    "load_model": "keras.functions",
    "reducescatter": "keras.collectives",
}
_MODULES = ("callbacks", "elastic")


if not TYPE_CHECKING:  # a type checker has seen the imports above, and is to complain about what there is not

    def __getattr__(name: str) -> Any:
        if name in _LATER:
            value = getattr(importlib.import_module(f"hora.{_LATER[name]}"), name)
        elif name in _MODULES:
            value = importlib.import_module(f"hora.keras.{name}")
        elif name == "Compression":  # each framework has its own, for its own tensors
            value = importlib.import_module(f"hora.{_keras.config.backend()}").Compression
        else:
            raise AttributeError(f"module 'hora.keras' has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return [*globals(), *_LATER, *_MODULES, "Compression"]
