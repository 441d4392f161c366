# Made by docs/stubs.py from hora.ops.table and hora.ops.dialects. Do not edit.

from typing import Any

from hora.engine.process_set import ProcessSet, global_process_set
from hora.types import ReduceOp

__all__ = ["allgather", "allreduce", "barrier", "broadcast", "reducescatter"]

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
    """Combine the tensors of all ranks, element by element."""

def allgather(value: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Concatenate the tensors of all ranks along the first dimension, in rank order."""

def broadcast(value: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Copy the root's tensor to every rank."""

def reducescatter(
    value: Any,
    name: str | None = None,
    op: ReduceOp = ReduceOp.AVERAGE,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Combine the tensors of all ranks, then leave each rank its share of the rows."""

def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until every rank has called this."""
