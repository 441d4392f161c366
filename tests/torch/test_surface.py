"""``hora.torch`` is what the table says: every form, with the right parameters, documented; and quick to import."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import hora.torch as hvd
from hora.ops.table import FUNCTIONS
from hora.torch import collectives, sparse

HOROVOD = [
    "init",
    "shutdown",
    "is_initialized",
    "rank",
    "size",
    "local_rank",
    "local_size",
    "cross_rank",
    "cross_size",
    "mpi_threads_supported",
    "mpi_enabled",
    "mpi_built",
    "gloo_enabled",
    "gloo_built",
    "nccl_built",
    "ddl_built",
    "ccl_built",
    "cuda_built",
    "rocm_built",
    "start_timeline",
    "stop_timeline",
    "ProcessSet",
    "global_process_set",
    "add_process_set",
    "remove_process_set",
    "Average",
    "Sum",
    "Adasum",
    "Min",
    "Max",
    "Product",
    "Compression",
    "allreduce",
    "allreduce_async",
    "allreduce_",
    "allreduce_async_",
    "grouped_allreduce",
    "grouped_allreduce_async",
    "grouped_allreduce_",
    "grouped_allreduce_async_",
    "sparse_allreduce_async",
    "allgather",
    "allgather_async",
    "grouped_allgather",
    "grouped_allgather_async",
    "broadcast",
    "broadcast_async",
    "broadcast_",
    "broadcast_async_",
    "alltoall",
    "alltoall_async",
    "reducescatter",
    "reducescatter_async",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "barrier",
    "poll",
    "synchronize",
    "broadcast_parameters",
    "broadcast_optimizer_state",
    "broadcast_object",
    "allgather_object",
    "DistributedOptimizer",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_form_of_the_table_is_there(function: str) -> None:
    collective, form = FUNCTIONS[function]
    implementation = getattr(hvd, function)
    parameters = inspect.signature(implementation).parameters
    assert list(parameters) == [argument.name for argument in collective.parameters(form)]
    assert all(p.annotation is not p.empty for p in parameters.values())
    assert implementation.__doc__.startswith(collective.summary)
    needed = [name for name, parameter in parameters.items() if parameter.default is parameter.empty]
    assert needed == [name for name in parameters if name in ("tensor", "tensors", "root_rank")]


def test_no_form_outside_the_table() -> None:
    functions = {
        name
        for module in (collectives, sparse)
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    }
    assert functions == set(FUNCTIONS)


@pytest.mark.parametrize("name", HOROVOD)
def test_horovods_names(name: str) -> None:
    assert name in hvd.__all__


def test_all_is_exactly_the_public_names() -> None:
    public = {name for name in dir(hvd) if not name.startswith("_") and not inspect.ismodule(getattr(hvd, name))}
    assert public - {"annotations", "Any", "TYPE_CHECKING"} == set(hvd.__all__)
    assert len(hvd.__all__) == len(set(hvd.__all__))


def test_what_is_imported_later_is_there() -> None:
    """By attribute, by ``from … import`` and by a star; and what there is not, is not."""
    names: dict[str, object] = {}
    exec("from hora.torch import *", names)
    assert set(hvd.__all__) <= set(names)
    assert hvd.DistributedOptimizer is names["DistributedOptimizer"]
    with pytest.raises(AttributeError, match=r"'hora\.torch' has no attribute 'DistributedOptimiser'"):
        hvd.DistributedOptimiser  # noqa: B018


def test_ops_are_horovods_numbers() -> None:
    assert [hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product] == [0, 1, 2, 3, 4, 5]


IMPORTED = """
import sys, torch
before = set(sys.modules)
import hora.torch
print(*sorted(set(sys.modules) - before))
"""


def test_import_brings_little() -> None:
    """What is slow to import stays out until it is needed; how long it takes is for ``hora bench launch`` to say."""
    source = Path(__file__).parents[2] / "src"
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED],
        env={"PYTHONPATH": str(source), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    brought = set(done.stdout.split())
    assert "hora.torch" in brought
    heavy = {"cloudpickle", "rich", "click", "psutil", "asyncio", "statistics"}
    not_here = {
        "hora.torch.optimizer",
        "hora.torch.reducer",
        "hora.torch.sync_batch_norm",
        "hora.engine.hub",
        "hora.engine.message_backend",
        "hora.transport.gloo",
        "hora.launch",
        "hora.cli",
        "hora.lab",
    }
    assert not brought & (heavy | not_here)


def test_the_module_is_not_torch_itself() -> None:
    assert hvd.__name__ == "hora.torch" and torch.__name__ == "torch"
