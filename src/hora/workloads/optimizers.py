"""The optimizers that images are learned with, by the names that published tables use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

__all__ = ["NAMES", "PRESETS", "OptimizerName", "make"]

OptimizerName = Literal["sgd", "momentum", "nesterov", "adam", "adamw", "rmsprop", "lars", "lamb"]
NAMES: tuple[OptimizerName, ...] = get_args(OptimizerName)

# Rates that work: a tenth of SGD's is far too much for those that divide by the gradient's size, whose rate also grows
# with the root of the batch.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    **{f"optimizer={name}": {"lr": 0.001, "rule": "sqrt"} for name in ("adam", "adamw", "lamb")},
    "optimizer=rmsprop": {"lr": 0.001},
}


def make(name: str, groups: Any, lr: float, momentum: float) -> Any:
    """An optimizer over parameters, or groups of them that have their own ``weight_decay``.

    "sgd" and "momentum" are the same: SGD with ``momentum``, which may be 0. RMSprop's mean is over ten steps or so, as
    TensorFlow's and Keras's are.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.ones(1))
    >>> [type(make(name, [weight], 0.1, 0.9)).__name__ for name in NAMES]
    ['SGD', 'SGD', 'SGD', 'Adam', 'AdamW', 'RMSprop', 'LARS', 'LAMB']
    """
    import torch

    from hora.torch.optim import LAMB, LARS

    match name:
        case "adam":
            return torch.optim.Adam(groups, lr)
        case "adamw":
            return torch.optim.AdamW(groups, lr, weight_decay=0.0)  # but for groups that have theirs
        case "rmsprop":
            return torch.optim.RMSprop(groups, lr, alpha=0.9, eps=1e-7)
        case "lars":
            return LARS(groups, lr, momentum=momentum)
        case "lamb":
            return LAMB(groups, lr)
    return torch.optim.SGD(groups, lr, momentum=momentum, nesterov=name == "nesterov")
