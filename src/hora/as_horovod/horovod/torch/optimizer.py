"""``horovod.torch.optimizer``."""

from __future__ import annotations

from hora.torch import DistributedOptimizer

from ..common.util import split_list

__all__ = ["DistributedOptimizer", "split_list"]
