"""Collectives on values: numbers, lists and arrays, as callbacks and scripts have them beside the training itself.

They go through the host and work on every backend alike. What is given as a tensor comes back as one, anything else as
a numpy array, or a number if it has no dimensions. For collectives inside a model or a compiled step, use the
front-end of the backend: ``hora.tensorflow``, ``hora.torch`` or ``hora.jax``.
"""

from __future__ import annotations

from typing import Any

from hora.engine import session
from hora.engine.process_set import ProcessSet, global_process_set
from hora.keras.adapter import Array, from_numpy, is_tensor, to_numpy
from hora.ops import host
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
    "barrier",
    "broadcast",
    "reducescatter",
]

Average, Sum, Adasum = ReduceOp.AVERAGE, ReduceOp.SUM, ReduceOp.ADASUM
Min, Max, Product = ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT

_ALLREDUCE = FUNCTIONS["allreduce"][0]
_REDUCESCATTER = FUNCTIONS["reducescatter"][0]


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: ReduceOp | None = None,
    compression: Any = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Combine the values of all ranks; every rank gets the result.

    Args:
        value: A number, a list, an array or a tensor, of the same shape and type on all ranks.
        name: What the operation is called; every rank must use the same.
        average: The older way to say op=Average or op=Sum.
        prescale_factor: What values are multiplied by before they are combined.
        postscale_factor: What the result is multiplied by.
        op: Average unless given; Sum, Min, Max, Product or Adasum.
        compression: A compressor of the backend's front-end, such as ``Compression.fp16``.
        process_set: The ranks that take part; all of them unless given.

    >>> import hora.keras as hvd
    >>> hvd.init()
    >>> hvd.allreduce([0.5, 1.5], name="score").tolist()      # alone: one rank
    [0.5, 1.5]
    >>> hvd.shutdown()
    """
    small, context = value, None
    if compression is not None:
        small, context = compression.compress(from_numpy(to_numpy(value)))
    array = to_numpy(small)
    how = _how(_ALLREDUCE, array, op, average, prescale_factor, postscale_factor)
    (result,) = host.allreduce([array], how, name, process_set).result()
    if compression is not None:
        result = to_numpy(compression.decompress(from_numpy(result), context))
    return _like(value, result)


def allgather(value: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Concatenate the rows of all ranks' values in rank order; ranks may have different numbers of rows.

    Args:
        value: A list, an array or a tensor, alike on all ranks but for its first dimension.
        name: What the operation is called; every rank must use the same.
        process_set: The ranks that take part; all of them unless given.
    """
    (gathered,) = host.allgather([to_numpy(value)], name, process_set).result()
    return _like(value, gathered.array)


def broadcast(value: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """The root's value, on every rank.

    Args:
        value: A number, a list, an array or a tensor, of the same shape and type on all ranks.
        root_rank: The rank to copy from: its rank among all, also within a process set.
        name: What the operation is called; every rank must use the same.
        process_set: The ranks that take part; all of them unless given.
    """
    (result,) = host.broadcast([to_numpy(value)], root_rank, name, process_set).result()
    return _like(value, result)


def reducescatter(
    value: Any,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Combine the values of all ranks, then leave each rank its share of the rows.

    Args:
        value: A list, an array or a tensor, of the same shape and type on all ranks.
        name: What the operation is called; every rank must use the same.
        op: Average or Sum.
        prescale_factor: What values are multiplied by before they are combined.
        postscale_factor: What the result is multiplied by.
        process_set: The ranks that take part; all of them unless given.
    """
    array = to_numpy(value)
    how = _how(_REDUCESCATTER, array, op, None, prescale_factor, postscale_factor)
    (result,) = host.reducescatter([array], how, name, process_set).result()
    return _like(value, result)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until every rank has called this.

    Args:
        process_set: The ranks that take part; all of them unless given.
    """
    session.engine().barrier(process_set)


def _how(
    collective: Collective, array: Array, op: ReduceOp | None, average: bool | None, prescale: float, postscale: float
) -> Reduction:
    return reduction(collective, (host.dtype_of(array),), op, average, prescale, postscale)


def _like(value: Any, result: Array) -> Any:
    """The result as the kind of thing that was given."""
    if is_tensor(value):
        return from_numpy(result)
    return result if result.ndim else result[()]
