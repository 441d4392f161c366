"""Hora for PyTorch: Horovod's names, with its meanings.

>>> import torch
>>> import hora.torch as hvd
>>> hvd.init()
>>> hvd.allreduce(torch.tensor([1.0, 2.0]) * (hvd.rank() + 1), name="x", op=hvd.Sum)    # alone: one rank
tensor([1., 2.])
>>> hvd.synchronize(hvd.allgather_async(torch.tensor([hvd.rank()])))
tensor([0])
>>> hvd.shutdown()

The files: ``collectives`` (the functions), ``autograd`` (their gradients), ``submit`` (tensors to the engine),
``adapter`` (tensors to memory), ``compression``, ``sparse``, ``functions`` (parameters, optimizer state, objects),
``optimizer`` (and what it is made of). What not every script uses is imported when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hora import basics as _basics
from hora.basics import *  # noqa: F403
from hora.engine.handle import poll, synchronize
from hora.errors import *  # noqa: F403  # said again for type checkers: a star's star is not followed
from hora.ops.later import later as _later
from hora.torch import collectives as _collectives
from hora.torch.collectives import *  # noqa: F403
from hora.torch.compression import Compression

_LATER = {
    "DistributedOptimizer": ".optimizer",
    "SyncBatchNorm": ".sync_batch_norm",
    "allgather_object": ".functions",
    "broadcast_object": ".functions",
    "broadcast_optimizer_state": ".functions",
    "broadcast_parameters": ".functions",
    "shared_empty": ".memory",
    "sparse_allreduce_async": ".sparse",
}

__all__ = ["Compression", "poll", "synchronize", *_LATER]
__all__ += _basics.__all__
__all__ += _collectives.__all__

if TYPE_CHECKING:
    from hora.torch import elastic as elastic
    from hora.torch.functions import allgather_object as allgather_object
    from hora.torch.functions import broadcast_object as broadcast_object
    from hora.torch.functions import broadcast_optimizer_state as broadcast_optimizer_state
    from hora.torch.functions import broadcast_parameters as broadcast_parameters
    from hora.torch.memory import shared_empty as shared_empty
    from hora.torch.optimizer import DistributedOptimizer as DistributedOptimizer
    from hora.torch.sparse import sparse_allreduce_async as sparse_allreduce_async
    from hora.torch.sync_batch_norm import SyncBatchNorm as SyncBatchNorm
else:
    __getattr__, __dir__ = _later(__name__, {**_LATER, "elastic": ".elastic"})
