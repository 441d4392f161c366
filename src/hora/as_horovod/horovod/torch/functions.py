"""``horovod.torch.functions``: what is built on the collectives."""

from __future__ import annotations

from hora.torch import allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]
