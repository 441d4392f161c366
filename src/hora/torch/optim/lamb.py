"""LAMB for torch: Adam whose every layer takes a step in proportion to its weights (You et al. 2019)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hora.errors import UsageError

__all__ = ["LAMB"]


class LAMB(torch.optim.Optimizer):
    """Moments m and v as Adam's, with bias correction; ``r = m / (sqrt(v) + eps) + decay w``;
    ``w -= lr (|w| / |r|) r``, the ratio being 1 if a norm is 0.

    A parameter group with ``adapt=False`` has a ratio of 1: put biases and the parameters of normalisation there, with
    ``weight_decay=0``.

    >>> weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> weight.grad = torch.tensor([0.1, 0.1])
    >>> LAMB([weight], lr=0.1).step()                         # the first r is the gradient's sign; 0.1 * 5 / sqrt(2)
    >>> [round(w, 3) for w in weight.tolist()]
    [2.646, 3.646]
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        adapt: bool = True,
    ) -> None:
        for name, value in {"lr": lr, "eps": eps, "weight_decay": weight_decay}.items():
            if not 0 <= value < float("inf"):
                raise UsageError(f"{name}={value} for LAMB must be a number of at least 0.")
        if not all(0 <= beta < 1 for beta in betas):
            raise UsageError(f"betas={betas} for LAMB must be at least 0 and less than 1, or the moments never settle.")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "adapt": adapt})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; parameters without a gradient stay as they are."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            one, two = group["betas"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["step"] = 0
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weight), torch.zeros_like(weight)
                state["step"] += 1
                first = state["exp_avg"].lerp_(weight.grad, 1 - one)
                second = state["exp_avg_sq"].mul_(two).addcmul_(weight.grad, weight.grad, value=1 - two)
                root = (second / (1 - two ** state["step"])).sqrt_().add_(group["eps"])
                update = (first / (1 - one ** state["step"])).div_(root).add_(weight, alpha=group["weight_decay"])
                if group["adapt"]:
                    update.mul_(_ratio(weight, update))
                weight.sub_(update, alpha=group["lr"])
        return loss


def _ratio(weight: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
    """Weights' norm to the update's. Stays on the device: reading the norms would wait for it."""
    w, r = weight.norm(), update.norm()
    return torch.where((w > 0) & (r > 0), w / r, torch.ones_like(w))
