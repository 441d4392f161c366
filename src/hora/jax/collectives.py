"""The collectives of ``hora.jax``: the forms in ``ops.table`` that make sense for arrays which cannot be changed.

What they mean, what they take and what their gradients are is written in the table, from which the docstrings are
filled. Forms that block may stand anywhere, also under ``jit``, ``grad`` and ``vmap``; ``*_async`` forms return a
handle for ``poll`` and ``synchronize`` and need arrays with values.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from hora.engine import session
from hora.engine.core import source_line
from hora.engine.process_set import ProcessSet, global_process_set
from hora.errors import UsageError
from hora.jax import gradients
from hora.jax.adapter import adopt, as_array, dtype_of, is_traced, view
from hora.jax.call import Call, splits_in_program
from hora.jax.compression import Compression, Compressor
from hora.ops.document import documented
from hora.ops.resolve import Reduction, reduction
from hora.ops.table import FUNCTIONS, Collective
from hora.transport.base import Kind, ReduceOp

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_async",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_async",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_async",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "reducescatter",
    "reducescatter_async",
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
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> jax.Array:
    small, context = compression.compress(as_array(tensor))
    how = _how(_ALLREDUCE, [small], op, average, prescale_factor, postscale_factor)
    (result,) = _carry(Call(Kind.ALLREDUCE, name, process_set, how=how), [small])
    return compression.decompress(result, context)


@documented
def allreduce_async(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    array = as_array(tensor)
    how = _how(_ALLREDUCE, [array], op, average, prescale_factor, postscale_factor)
    return _start(Call(Kind.ALLREDUCE, name, process_set, how=how), [array], single=True)


@documented
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[jax.Array]:
    small, contexts = _compress(tensors, compression)
    how = _how(_ALLREDUCE, small, op, average, prescale_factor, postscale_factor)
    results = _carry(Call(Kind.ALLREDUCE, name, process_set, how=how, grouped=True), small)
    return [compression.decompress(result, context) for result, context in zip(results, contexts, strict=True)]


@documented
def grouped_allreduce_async(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    arrays = [as_array(tensor) for tensor in tensors]
    how = _how(_ALLREDUCE, arrays, op, average, prescale_factor, postscale_factor)
    return _start(Call(Kind.ALLREDUCE, name, process_set, how=how, grouped=True), arrays)


# --- allgather, broadcast, alltoall -----------------------------------------------------------------------------------


@documented
def allgather(tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> jax.Array:
    """Under ``jit`` all ranks must bring equally many rows: the shape of the result is fixed beforehand."""
    return _carry(Call(Kind.ALLGATHER, name, process_set), [as_array(tensor)])[0]


@documented
def allgather_async(tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    return _start(Call(Kind.ALLGATHER, name, process_set), [as_array(tensor)], single=True)


@documented
def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[jax.Array]:
    """Under ``jit`` all ranks must bring equally many rows: the shapes of the results are fixed beforehand."""
    call = Call(Kind.ALLGATHER, name, process_set, grouped=True)
    return _carry(call, [as_array(tensor) for tensor in tensors])[::2]


@documented
def grouped_allgather_async(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    return _start(Call(Kind.ALLGATHER, name, process_set, grouped=True), [as_array(tensor) for tensor in tensors])


@documented
def broadcast(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> jax.Array:
    return _carry(Call(Kind.BROADCAST, name, process_set, root=root_rank), [as_array(tensor)])[0]


@documented
def broadcast_async(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    return _start(Call(Kind.BROADCAST, name, process_set, root=root_rank), [as_array(tensor)], single=True)


@documented
def alltoall(
    tensor: Any,
    splits: Sequence[int] | jax.Array | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Under ``jit`` only without ``splits``: the shape of the result is fixed beforehand."""
    received, rows = _carry(Call(Kind.ALLTOALL, name, process_set, splits=_integers(splits)), [as_array(tensor)])
    return received if splits is None else (received, rows)


@documented
def alltoall_async(
    tensor: Any,
    splits: Sequence[int] | jax.Array | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    call = Call(Kind.ALLTOALL, name, process_set, splits=_integers(splits))
    return _start(call, [as_array(tensor)], single=splits is None)


# --- reducescatter ----------------------------------------------------------------------------------------------------


@documented
def reducescatter(
    tensor: Any,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> jax.Array:
    small, context = compression.compress(as_array(tensor))
    how = _how(_REDUCESCATTER, [small], op, None, prescale_factor, postscale_factor)
    (result,) = _carry(Call(Kind.REDUCESCATTER, name, process_set, how=how), [small])
    return compression.decompress(result, context)


@documented
def reducescatter_async(
    tensor: Any,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    array = as_array(tensor)
    how = _how(_REDUCESCATTER, [array], op, None, prescale_factor, postscale_factor)
    return _start(Call(Kind.REDUCESCATTER, name, process_set, how=how), [array], single=True)


@documented
def grouped_reducescatter(
    tensors: Sequence[Any],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[jax.Array]:
    small, contexts = _compress(tensors, compression)
    how = _how(_REDUCESCATTER, small, op, None, prescale_factor, postscale_factor)
    results = _carry(Call(Kind.REDUCESCATTER, name, process_set, how=how, grouped=True), small)
    return [compression.decompress(result, context) for result, context in zip(results, contexts, strict=True)]


@documented
def grouped_reducescatter_async(
    tensors: Sequence[Any],
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    arrays = [as_array(tensor) for tensor in tensors]
    how = _how(_REDUCESCATTER, arrays, op, None, prescale_factor, postscale_factor)
    return _start(Call(Kind.REDUCESCATTER, name, process_set, how=how, grouped=True), arrays)


# --- waiting for one another ------------------------------------------------------------------------------------------


@documented
def barrier(process_set: ProcessSet = global_process_set) -> None:
    jax.effects_barrier()  # what compiled programs still have to do comes before it
    session.engine().barrier(process_set)


@documented
def join(device: int = -1, average_active: bool = False) -> int:
    jax.effects_barrier()
    return session.engine().join(average_active)


# --- small things the forms share -------------------------------------------------------------------------------------


def _carry(call: Call, arrays: list[jax.Array]) -> list[jax.Array]:
    """Do it now, or record it with the line it came from."""
    if any(is_traced(array) for array in arrays):
        for array in arrays:
            dtype_of(array)
        call = replace(call, line=source_line())
    return gradients.carry(call, arrays)


def _start(call: Call, arrays: list[jax.Array], single: bool = False) -> int:
    if any(is_traced(array) for array in arrays):
        raise UsageError(
            f"{call.kind.name.lower()}_async under jit, grad or vmap. It would have to hand out a handle for something"
            " that has not begun. Use the form without _async there."
        )
    started = call.start([view(array) for array in arrays])

    def finish(results: list[Any]) -> Any:
        made = adopt(results, arrays[0])
        if single:
            return made[0]
        return made[::2] if call.kind is Kind.ALLGATHER else tuple(made) if call.kind is Kind.ALLTOALL else made

    return started.then(finish).handle()


def _how(
    collective: Collective,
    arrays: Sequence[Any],
    op: ReduceOp | None,
    average: bool | None,
    prescale: float,
    postscale: float,
) -> Reduction:
    return reduction(collective, [dtype_of(array) for array in arrays], op, average, prescale, postscale)


def _compress(tensors: Sequence[Any], compression: type[Compressor]) -> tuple[list[Any], list[Any]]:
    pairs = [compression.compress(as_array(tensor)) for tensor in tensors]
    return [small for small, _ in pairs], [context for _, context in pairs]


def _integers(splits: Any) -> tuple[int, ...] | None:
    """Splits as plain numbers, whether they came as an array or a list."""
    if splits is None:
        return None
    if is_traced(splits):
        raise splits_in_program()
    try:
        return tuple(operator.index(rows) for rows in np.asarray(splits).tolist())
    except TypeError:
        raise UsageError(
            f"alltoall: splits={splits!r} is no list of integers. It says how many rows each rank gets. Give a list"
            " or a 1-d array of integers."
        ) from None
