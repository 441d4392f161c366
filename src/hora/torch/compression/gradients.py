"""The gradients of a model, reduced through a compressor: for training loops without ``DistributedOptimizer``."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from hora.engine.process_set import ProcessSet, global_process_set
from hora.ops.compression import GradientCompressor
from hora.types import ReduceOp

__all__ = ["reduce_gradients"]


def reduce_gradients(
    named_parameters: Iterable[tuple[str, torch.Tensor]],
    compression: GradientCompressor,
    op: ReduceOp = ReduceOp.AVERAGE,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Reduce the gradient of every parameter over the ranks, in place. Call it between ``backward`` and ``step``.

    A parameter that has no gradient here takes part with zeros, because it may have one on another rank.

    >>> import hora.torch as hvd
    >>> hvd.init()
    >>> model = torch.nn.Linear(100, 50)
    >>> compression = hvd.Compression.power_sgd(rank=1)
    >>> model(torch.ones(8, 100)).sum().backward()
    >>> reduce_gradients(model.named_parameters(), compression)
    >>> compression.report()
    'PowerSGD(rank=1, start_step=0): 20.2 kB of gradients sent as 800 B, 25.2 times less; 1 of 2 tensors compressed'
    >>> hvd.shutdown()
    """
    finishes = []
    for name, parameter in named_parameters:
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            finishes.append((parameter, compression.start(name, parameter.grad, op, process_set)))
    for parameter, finish in finishes:
        parameter.grad = finish()
