"""The collectives of ``hora.mxnet``: Horovod's functions for MXNet, with its arguments in its order.

What they mean is written in ``ops.table``, from which the docstrings are filled. All of them block, and gradients do
not flow through them: ``DistributedTrainer`` needs neither. ``priority`` is taken for Horovod's sake.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import mxnet as mx
import numpy as np

from hora.engine import session
from hora.engine.process_set import ProcessSet, global_process_set
from hora.errors import UsageError
from hora.mxnet.adapter import fresh, like, put_back, view
from hora.ops import host
from hora.ops.document import documented
from hora.ops.resolve import Reduction, reduction
from hora.ops.table import FUNCTIONS, Collective
from hora.transport.base import ReduceOp

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "join",
    "reduce_in_place",
    "reducescatter",
]

Average, Sum, Adasum = ReduceOp.AVERAGE, ReduceOp.SUM, ReduceOp.ADASUM
Min, Max, Product = ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT

_ALLREDUCE = FUNCTIONS["allreduce"][0]
_REDUCESCATTER = FUNCTIONS["reducescatter"][0]

# --- allreduce --------------------------------------------------------------------------------------------------------


@documented
def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: ReduceOp | None = None,
) -> Any:
    (result,) = _allreduce([tensor], average, name, prescale_factor, postscale_factor, process_set, op, False, False)
    return result


@documented
def allreduce_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: ReduceOp | None = None,
) -> Any:
    _allreduce([tensor], average, name, prescale_factor, postscale_factor, process_set, op, False, True)
    return tensor


@documented
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: ReduceOp | None = None,
) -> list[Any]:
    return _allreduce(tensors, average, name, prescale_factor, postscale_factor, process_set, op, True, False)


@documented
def grouped_allreduce_(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: ReduceOp | None = None,
) -> list[Any]:
    return _allreduce(tensors, average, name, prescale_factor, postscale_factor, process_set, op, True, True)


# --- allgather, broadcast, alltoall -----------------------------------------------------------------------------------


@documented
def allgather(
    tensor: Any, name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> Any:
    (gathered,) = host.allgather([view(tensor)], name, process_set).result()
    return like(gathered.array, tensor)


@documented
def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> list[Any]:
    gathered = host.allgather([view(tensor) for tensor in tensors], name, process_set, grouped=True).result()
    return [like(one.array, tensor) for one, tensor in zip(gathered, tensors, strict=True)]


@documented
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    result = fresh(tensor.shape, tensor.dtype, tensor)
    memory = view(result, write=True)
    host.broadcast([view(tensor)], root_rank, name, process_set, into=[memory]).result()
    put_back(result, memory)
    return result


@documented
def broadcast_(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    memory = view(tensor, write=True)
    host.broadcast([memory], root_rank, name, process_set, into=[memory]).result()
    put_back(tensor, memory)
    return tensor


@documented
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    received = host.alltoall(view(tensor), _integers(splits), name, process_set).result()
    rows = like(received.array, tensor)
    return rows if splits is None else (rows, mx.nd.array(received.rows, dtype="int32"))


# --- reducescatter ----------------------------------------------------------------------------------------------------


@documented
def reducescatter(
    tensor: Any,
    op: ReduceOp = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    array = view(tensor)
    how = _how(_REDUCESCATTER, [array], op, None, prescale_factor, postscale_factor)
    (result,) = host.reducescatter([array], how, name, process_set).result()
    return like(result, tensor)


@documented
def grouped_reducescatter(
    tensors: Sequence[Any],
    op: ReduceOp = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    arrays = [view(tensor) for tensor in tensors]
    how = _how(_REDUCESCATTER, arrays, op, None, prescale_factor, postscale_factor)
    results = host.reducescatter(arrays, how, name, process_set, grouped=True).result()
    return [like(result, tensor) for result, tensor in zip(results, tensors, strict=True)]


# --- waiting for one another ------------------------------------------------------------------------------------------


@documented
def barrier(process_set: ProcessSet = global_process_set) -> None:
    session.engine().barrier(process_set)


@documented
def join(device: int = -1, average_active: bool = False) -> int:
    return session.engine().join(average_active)


# --- small things the forms share -------------------------------------------------------------------------------------


def reduce_in_place(tensors: Sequence[Any], how: Reduction, name: str, process_set: ProcessSet) -> None:
    """Combine a group where it lies."""
    memory = [view(tensor, write=True) for tensor in tensors]
    host.allreduce(memory, how, name, process_set, grouped=True, into=memory).result()
    for tensor, array in zip(tensors, memory, strict=True):
        put_back(tensor, array)


def _allreduce(
    tensors: Sequence[Any],
    average: bool | None,
    name: str | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    op: ReduceOp | None,
    grouped: bool,
    in_place: bool,
) -> list[Any]:
    inputs = [view(tensor, write=in_place) for tensor in tensors]
    how = _how(_ALLREDUCE, inputs, op, average, prescale, postscale)
    results = list(tensors) if in_place else [fresh(t.shape, t.dtype, t) for t in tensors]
    into = inputs if in_place else [view(result, write=True) for result in results]
    host.allreduce(inputs, how, name, process_set, grouped=grouped, into=into).result()
    for result, memory in zip(results, into, strict=True):
        put_back(result, memory)
    return results


def _how(
    collective: Collective,
    arrays: Sequence[Any],
    op: ReduceOp | None,
    average: bool | None,
    prescale: float,
    postscale: float,
) -> Reduction:
    return reduction(collective, [host.dtype_of(array) for array in arrays], op, average, prescale, postscale)


def _integers(splits: Any) -> list[int] | None:
    """Splits as plain numbers, whether they came as an array or a list."""
    if splits is None:
        return None
    numbers = view(splits) if isinstance(splits, mx.nd.NDArray) else np.asarray(splits)
    try:
        return [operator.index(int(rows)) if rows == int(rows) else operator.index(rows) for rows in numbers.tolist()]
    except TypeError:
        raise UsageError(
            f"alltoall: splits={splits!r} is no list of integers. It says how many rows each rank gets. Give a list"
            " or a 1-d array of integers."
        ) from None
