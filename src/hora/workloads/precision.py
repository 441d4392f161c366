"""The precision that a network computes in: float32, or under autocast in bfloat16 or float16. Weights stay float32.

float16 has no room for small gradients, so the loss is scaled up before the backward pass and gradients down after it;
a step whose gradients overflow is left out on all workers, and the scale halved (torch's ``GradScaler``).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

__all__ = ["Precision"]

_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """
    >>> weight = torch.nn.Parameter(torch.ones(2, 2))
    >>> precision = Precision("bf16", torch.device("cpu"))
    >>> with precision.autocast():
    ...     (weight @ weight).dtype
    torch.bfloat16
    """

    def __init__(self, name: str, device: torch.device) -> None:
        self._type, self._device = _TYPES.get(name), device.type
        self._scaler = torch.amp.GradScaler(device.type, enabled=name == "fp16")

    def autocast(self) -> AbstractContextManager[Any]:
        """The autocast context of the forward pass."""
        return torch.autocast(self._device, self._type or torch.bfloat16, enabled=self._type is not None)

    def backward(self, loss: torch.Tensor) -> None:
        """Instead of ``loss.backward()``."""
        self._scaler.scale(loss).backward()

    def step(self, optimizer: Any) -> None:
        """Instead of ``optimizer.step()``."""
        self._scaler.step(optimizer)
        self._scaler.update()

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs; empty if nothing is scaled."""
        return self._scaler.state_dict()

    def load_state(self, state: dict[str, Any]) -> None:
        if state and self._scaler.is_enabled():
            self._scaler.load_state_dict(state)
