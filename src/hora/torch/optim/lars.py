"""LARS for torch: SGD whose every layer takes a step in proportion to its weights (You et al. 2017), so that batches of
32 k still train ResNet-50. The update is MLPerf's, where plain SGD's ends at about 8 k.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hora.errors import UsageError

__all__ = ["LARS"]


class LARS(torch.optim.Optimizer):
    """``trust = eta |w| / (|g| + decay |w| + eps)``, 1 if a norm is 0; ``v = momentum v + lr trust (g + decay w)``;
    ``w -= v``.

    A parameter group with ``adapt=False`` has a trust of 1: put biases and the parameters of normalisation there, with
    ``weight_decay=0``. The rate is inside the velocity, as published, so after a change of the rate the older part of
    the velocity keeps the old one.

    >>> weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> weight.grad = torch.tensor([0.0, 2.0])
    >>> LARS([weight], lr=1.0, eta=0.1).step()               # trust: 0.1 * 5 / 2
    >>> weight.tolist()
    [3.0, 3.5]
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        eta: float = 0.001,
        eps: float = 0.0,
        adapt: bool = True,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "eta": eta, "eps": eps}
        for name, value in defaults.items():
            if not 0 <= value < float("inf"):
                raise UsageError(f"{name}={value} for LARS must be a number of at least 0.")
        super().__init__(params, {**defaults, "adapt": adapt})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; parameters without a gradient stay as they are."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                update = weight.grad.add(weight, alpha=group["weight_decay"])
                if group["adapt"]:
                    update.mul_(_trust(weight, weight.grad, group["weight_decay"], group["eta"], group["eps"]))
                state = self.state[weight]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(weight)
                velocity = state["momentum_buffer"].mul_(group["momentum"]).add_(update, alpha=group["lr"])
                weight.sub_(velocity)
        return loss


def _trust(weight: torch.Tensor, gradient: torch.Tensor, decay: float, eta: float, eps: float) -> torch.Tensor:
    """How far this layer's gradient is to be trusted. Stays on the device: reading the norms would wait for it."""
    w, g = weight.norm(), gradient.norm()
    return torch.where((w > 0) & (g > 0), eta * w / (g + decay * w + eps), torch.ones_like(w))
