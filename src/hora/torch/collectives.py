"""The collectives of ``hora.torch``: every form in ``ops.table``, typed, a few lines each.

What they mean, what they take and what their gradients are is written in the table, from which the docstrings are
filled. Forms that block return tensors and are differentiable; ``*_async`` forms return a handle for ``poll`` and
``synchronize`` and are not.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch

from hora.engine import session
from hora.engine.process_set import ProcessSet, global_process_set
from hora.errors import UsageError
from hora.ops.document import documented
from hora.ops.resolve import Reduction, reduction
from hora.ops.table import FUNCTIONS, Collective
from hora.torch import autograd, repeat, submit
from hora.torch.adapter import dtype_of
from hora.torch.compression import Compression, Compressor
from hora.torch.compression.cast import type_between_hosts
from hora.transport.base import DType, ReduceOp

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
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
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


def _wire(compression: type[Compressor], tensors: Sequence[torch.Tensor]) -> DType | None:
    """What the engine is to round to between hosts, if there is anything in that and no gradient is wanted."""
    if compression is Compression.none or autograd.recording(tensors):
        return None
    return type_between_hosts(compression, tensors, session.engine().backend)


# --- allreduce --------------------------------------------------------------------------------------------------------


@documented
def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    if (wire := _wire(compression, [tensor])) is not None:
        how = reduction(_ALLREDUCE, (wire,), op, average, prescale_factor, postscale_factor)._replace(wire=wire)
        return submit.allreduce([tensor], how, name, process_set).result()[0]
    small, context = compression.compress(tensor)
    how = reduction(_ALLREDUCE, (dtype_of(small),), op, average, prescale_factor, postscale_factor)
    # What compression made is ours to overwrite, which spares the memory of a result.
    ours = small.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr() and not autograd.recording([small])
    (result,) = autograd.allreduce([small], how, name, process_set, in_place=ours)
    return compression.decompress(result, context)


@documented
def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    how = reduction(_ALLREDUCE, (dtype_of(tensor),), op, average, prescale_factor, postscale_factor)
    return submit.allreduce([tensor], how, name, process_set).then(_only).handle()


@documented
def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    call = (name, op, average, prescale_factor, postscale_factor, process_set.process_set_id)
    if repeat.again(tensor, call):
        return tensor
    how = reduction(_ALLREDUCE, (dtype_of(tensor),), op, average, prescale_factor, postscale_factor)
    result = autograd.allreduce([tensor], how, name, process_set, in_place=True)[0]
    repeat.remember(tensor, call, how, process_set)
    return result


@documented
def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    call = (name, op, average, prescale_factor, postscale_factor, process_set.process_set_id)
    if (begun := repeat.start(tensor, call)) is not None:
        return begun
    how = reduction(_ALLREDUCE, (dtype_of(tensor),), op, average, prescale_factor, postscale_factor)
    _refuse_recording([tensor], "allreduce_async_")
    handle = submit.allreduce([tensor], how, name, process_set, in_place=True).then(_only).handle()
    repeat.remember(tensor, call, how, process_set)
    return handle


@documented
def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    if (wire := _wire(compression, tensors)) is not None:
        how = _how(_ALLREDUCE, tensors, op, average, prescale_factor, postscale_factor)._replace(wire=wire)
        return submit.allreduce(tensors, how, name, process_set, grouped=True).result()
    small, contexts = _compress(tensors, compression)
    how = _how(_ALLREDUCE, small, op, average, prescale_factor, postscale_factor)
    results = autograd.allreduce(small, how, name, process_set, grouped=True)
    return [compression.decompress(result, context) for result, context in zip(results, contexts, strict=True)]


@documented
def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    how = _how(_ALLREDUCE, tensors, op, average, prescale_factor, postscale_factor)
    return submit.allreduce(tensors, how, name, process_set, grouped=True).handle()


@documented
def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    how = _how(_ALLREDUCE, tensors, op, average, prescale_factor, postscale_factor)
    return autograd.allreduce(tensors, how, name, process_set, grouped=True, in_place=True)


@documented
def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    how = _how(_ALLREDUCE, tensors, op, average, prescale_factor, postscale_factor)
    _refuse_recording(tensors, "grouped_allreduce_async_")
    return submit.allreduce(tensors, how, name, process_set, grouped=True, in_place=True).handle()


# --- allgather, broadcast, alltoall -----------------------------------------------------------------------------------


@documented
def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    return autograd.allgather([tensor], name, process_set)[0]


@documented
def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    return submit.allgather([tensor], name, process_set).then(lambda gathered: gathered[0].tensor).handle()


@documented
def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    return autograd.allgather(tensors, name, process_set, grouped=True)


@documented
def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    started = submit.allgather(tensors, name, process_set, grouped=True)
    return started.then(lambda gathered: [g.tensor for g in gathered]).handle()


@documented
def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    return autograd.broadcast(tensor, root_rank, name, process_set)


@documented
def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    return submit.broadcast([tensor], root_rank, name, process_set).then(_only).handle()


@documented
def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    return autograd.broadcast(tensor, root_rank, name, process_set, in_place=True)


@documented
def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    _refuse_recording([tensor], "broadcast_async_")
    return submit.broadcast([tensor], root_rank, name, process_set, in_place=True).then(_only).handle()


@documented
def alltoall(
    tensor: torch.Tensor,
    splits: Sequence[int] | torch.Tensor | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    received = autograd.alltoall(tensor, _integers(splits), name, process_set)
    return received.tensor if splits is None else (received.tensor, _int32(received.rows))


@documented
def alltoall_async(
    tensor: torch.Tensor,
    splits: Sequence[int] | torch.Tensor | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    started = submit.alltoall(tensor, _integers(splits), name, process_set)
    if splits is None:
        return started.then(lambda received: received.tensor).handle()
    return started.then(lambda received: (received.tensor, _int32(received.rows))).handle()


# --- reducescatter ----------------------------------------------------------------------------------------------------


@documented
def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    small, context = compression.compress(tensor)
    how = reduction(_REDUCESCATTER, (dtype_of(small),), op, None, prescale_factor, postscale_factor)
    (result,) = autograd.reducescatter([small], how, name, process_set)
    return compression.decompress(result, context)


@documented
def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    how = reduction(_REDUCESCATTER, (dtype_of(tensor),), op, None, prescale_factor, postscale_factor)
    return submit.reducescatter([tensor], how, name, process_set).then(_only).handle()


@documented
def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    small, contexts = _compress(tensors, compression)
    how = _how(_REDUCESCATTER, small, op, None, prescale_factor, postscale_factor)
    results = autograd.reducescatter(small, how, name, process_set, grouped=True)
    return [compression.decompress(result, context) for result, context in zip(results, contexts, strict=True)]


@documented
def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    how = _how(_REDUCESCATTER, tensors, op, None, prescale_factor, postscale_factor)
    return submit.reducescatter(tensors, how, name, process_set, grouped=True).handle()


# --- waiting for one another ------------------------------------------------------------------------------------------


@documented
def barrier(process_set: ProcessSet = global_process_set) -> None:
    session.engine().barrier(process_set)


@documented
def join(device: int = -1, average_active: bool = False) -> int:
    return session.engine().join(average_active)


# --- small things the forms share -------------------------------------------------------------------------------------


def _only(results: list[torch.Tensor]) -> torch.Tensor:
    return results[0]


def _how(
    collective: Collective,
    tensors: Sequence[torch.Tensor],
    op: ReduceOp | None,
    average: bool | None,
    prescale: float,
    postscale: float,
) -> Reduction:
    return reduction(collective, [dtype_of(tensor) for tensor in tensors], op, average, prescale, postscale)


def _compress(
    tensors: Sequence[torch.Tensor], compression: type[Compressor]
) -> tuple[list[torch.Tensor], list[object]]:
    pairs = [compression.compress(tensor) for tensor in tensors]
    return [small for small, _ in pairs], [context for _, context in pairs]


def _refuse_recording(tensors: Sequence[torch.Tensor], function: str) -> None:
    """An operation that ends later cannot be put on autograd's record now."""
    if autograd.recording_in_place(tensors):
        raise UsageError(
            f"{function} on a tensor that was computed from others that require grad. Autograd cannot record an"
            " operation that finishes later, and would compute wrong gradients. Call it under torch.no_grad(), or on"
            " tensor.data."
        )


def _integers(splits: Sequence[int] | torch.Tensor | None) -> list[int] | None:
    """Splits as plain numbers, whether they came as a tensor, an array or a list."""
    if splits is None:
        return None
    try:
        return [operator.index(rows) for rows in (splits.tolist() if isinstance(splits, torch.Tensor) else splits)]
    except TypeError:
        raise UsageError(
            f"alltoall: splits={splits!r} is no list of integers. It says how many rows each rank gets. Give a list"
            " or a 1-d tensor of integers."
        ) from None


def _int32(rows: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int32)
