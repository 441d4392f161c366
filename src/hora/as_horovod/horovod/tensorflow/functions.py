"""``horovod.tensorflow.functions``: what is built on the collectives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hora.tensorflow as _hora
from hora.tensorflow import ProcessSet, broadcast_global_variables, broadcast_variables, global_process_set

__all__ = [
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
]

_OBJECT = "object"  # why: see horovod.torch.functions


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """As in Hora; without a name all calls are one operation, repeated. No session is needed."""
    return _hora.broadcast_object(obj, root_rank, name or _OBJECT, process_set)


def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Callable[[Any], Any]:
    """As in Hora; without a name all calls are one operation, repeated."""
    return _hora.broadcast_object_fn(root_rank, session, name or _OBJECT, process_set)


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """As in Hora; without a name all calls are one operation, repeated. No session is needed."""
    return _hora.allgather_object(obj, name or _OBJECT, process_set)
