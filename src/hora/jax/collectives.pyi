# Made by docs/stubs.py from hora.ops.table and hora.ops.dialects. Do not edit.

from collections.abc import Sequence
from typing import Any

import jax

from hora.engine.process_set import ProcessSet, global_process_set
from hora.jax.compression import Compression, Compressor
from hora.types import ReduceOp

__all__ = [
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
    """Combine the tensors of all ranks, element by element."""

def allreduce_async(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Combine the tensors of all ranks, element by element."""

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
    """Combine the tensors of all ranks, element by element."""

def grouped_allreduce_async(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Combine the tensors of all ranks, element by element."""

def allgather(tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> jax.Array:
    """Concatenate the tensors of all ranks along the first dimension, in rank order."""

def allgather_async(tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Concatenate the tensors of all ranks along the first dimension, in rank order."""

def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[jax.Array]:
    """Concatenate the tensors of all ranks along the first dimension, in rank order."""

def grouped_allgather_async(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Concatenate the tensors of all ranks along the first dimension, in rank order."""

def broadcast(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> jax.Array:
    """Copy the root's tensor to every rank."""

def broadcast_async(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Copy the root's tensor to every rank."""

def alltoall(
    tensor: Any,
    splits: Sequence[int] | jax.Array | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Send a slice of rows to each rank, and concatenate the slices received, in rank order."""

def alltoall_async(
    tensor: Any,
    splits: Sequence[int] | jax.Array | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Send a slice of rows to each rank, and concatenate the slices received, in rank order."""

def reducescatter(
    tensor: Any,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = ReduceOp.AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> jax.Array:
    """Combine the tensors of all ranks, then leave each rank its share of the rows."""

def reducescatter_async(
    tensor: Any,
    name: str | None = None,
    op: ReduceOp = ReduceOp.AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Combine the tensors of all ranks, then leave each rank its share of the rows."""

def grouped_reducescatter(
    tensors: Sequence[Any],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = ReduceOp.AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[jax.Array]:
    """Combine the tensors of all ranks, then leave each rank its share of the rows."""

def grouped_reducescatter_async(
    tensors: Sequence[Any],
    name: str | None = None,
    op: ReduceOp = ReduceOp.AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Combine the tensors of all ranks, then leave each rank its share of the rows."""

def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until every rank has called this."""

def join(device: int = -1, average_active: bool = False) -> int:
    """Say that this rank has no more data, and wait until every rank has said so."""
