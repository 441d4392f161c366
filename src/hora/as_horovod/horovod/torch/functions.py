"""``horovod.torch.functions``: what is built on the collectives."""

from __future__ import annotations

import torch

import hora.torch as _hora
from hora.torch import ProcessSet, allgather_object, broadcast_object, broadcast_parameters, global_process_set

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]


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
