"""``horovod.torch.functions``: what is built on the collectives."""

from __future__ import annotations

from typing import Any

import torch

import hora.torch as _hora
from hora.torch import ProcessSet, broadcast_parameters, global_process_set

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]

# Horovod names objects after their types, so that they pair however many unnamed calls each rank has made before. One
# name for all types does the same, and pairs ranks whose types differ.
_OBJECT = "object"


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """As in Hora; without a name all calls are one operation, repeated."""
    return _hora.broadcast_object(obj, root_rank, name or _OBJECT, process_set)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """As in Hora; without a name all calls are one operation, repeated."""
    return _hora.allgather_object(obj, name or _OBJECT, process_set)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """As in Hora. An optimizer without state also leaves zero gradients behind, as it does in Horovod."""
    if not optimizer.state and not isinstance(optimizer, torch.optim.LBFGS):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad:
                    parameter.grad = torch.zeros_like(parameter)
    _hora.broadcast_optimizer_state(optimizer, root_rank, model, process_set)
