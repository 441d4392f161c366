"""``horovod.torch.optimizer``: Hora's, with the private table of parameter names that scripts read from Horovod's."""

from __future__ import annotations

import functools
from typing import Any

import torch

import hora.torch as _hora
from hora.torch.optimizer import _labelled, _names

from ..common.util import split_list

__all__ = ["DistributedOptimizer", "split_list"]


@functools.wraps(_hora.DistributedOptimizer)
def DistributedOptimizer(
    optimizer: torch.optim.Optimizer, named_parameters: Any = None, *args: Any, **kwargs: Any
) -> Any:
    named = None if named_parameters is None else list(named_parameters)
    made = _hora.DistributedOptimizer(optimizer, named, *args, **kwargs)
    made._parameter_names = {parameter: name for name, parameter in _labelled(optimizer, _names(optimizer, named))}
    return made
