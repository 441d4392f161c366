"""``hora.tensorflow`` is what the table of collectives says, and has Horovod's names."""

from __future__ import annotations

import inspect
from typing import Any

from hora.ops.table import FUNCTIONS

FOR_HOROVODS_SAKE = {"device_dense", "device_sparse", "ignore_name_scope"}
HOROVOD = [
    "init", "shutdown", "is_initialized", "rank", "size", "local_rank", "local_size", "cross_rank", "cross_size",
    "is_homogeneous", "mpi_threads_supported", "mpi_enabled", "mpi_built", "gloo_enabled", "gloo_built",
    "nccl_built", "ddl_built", "ccl_built", "cuda_built", "rocm_built", "start_timeline", "stop_timeline",
    "ProcessSet", "global_process_set", "add_process_set", "remove_process_set", "Average", "Sum", "Adasum", "Min",
    "Max", "Product", "Compression", "allreduce", "grouped_allreduce", "allgather", "grouped_allgather",
    "broadcast", "broadcast_", "alltoall", "reducescatter", "grouped_reducescatter", "join", "rank_op", "size_op",
    "local_rank_op", "local_size_op", "process_set_included_op", "broadcast_variables",
    "broadcast_global_variables", "BroadcastGlobalVariablesHook", "broadcast_object", "broadcast_object_fn",
    "allgather_object", "DistributedOptimizer", "DistributedGradientTape", "PartialDistributedGradientTape",
    "SyncBatchNormalization", "HorovodInternalError", "HostsUpdatedInterrupt",
]  # fmt: skip


def as_the_table_says(hvd: Any, rank: int, size: int) -> None:
    for name, (collective, form) in FUNCTIONS.items():
        # TensorFlow has no handles, and tensors that are never overwritten: only variables are, by broadcast_.
        if form.asynchronous or (form.in_place and name != "broadcast_"):
            assert not hasattr(hvd, name), name
            continue
        function = getattr(hvd, name)
        parameters = inspect.signature(function).parameters
        wanted = {argument.name for argument in collective.parameters(form)}
        if name == "broadcast_":
            wanted = wanted - {"tensor"} | {"variables"}
        assert set(parameters) - FOR_HOROVODS_SAKE == wanted, name
        assert all(parameter.annotation is not parameter.empty for parameter in parameters.values()), name
        assert function.__doc__.startswith(collective.summary), name
        needed = {parameter.name for parameter in parameters.values() if parameter.default is parameter.empty}
        assert needed == {"tensor", "tensors", "variables", "root_rank"} & set(parameters), name
        assert function.__module__ == "hora.tensorflow.collectives"


def names(hvd: Any, rank: int, size: int) -> None:
    assert set(HOROVOD) <= set(hvd.__all__) and len(hvd.__all__) == len(set(hvd.__all__))
    public = {name for name in dir(hvd) if not name.startswith("_") and not inspect.ismodule(getattr(hvd, name))}
    assert public - {"annotations", "Any", "TYPE_CHECKING"} == set(hvd.__all__)
    assert [hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product] == [0, 1, 2, 3, 4, 5]
    found: dict[str, object] = {}
    exec("from hora.tensorflow import *", found)
    assert set(hvd.__all__) <= set(found)
    try:
        hvd.DistributedOptimiser  # noqa: B018
    except AttributeError as error:
        assert "'hora.tensorflow' has no attribute 'DistributedOptimiser'" in str(error)
    else:
        raise AssertionError("there is a name that is not there")
