"""Hora for TensorFlow 2.16 and newer: Horovod's names, with its meanings, eagerly and inside ``tf.function``.

>>> import tensorflow as tf
>>> import hora.tensorflow as hvd
>>> hvd.init()
>>> hvd.allreduce(tf.constant([1.0, 2.0]) * (hvd.rank() + 1), name="x", op=hvd.Sum).numpy()    # alone: one rank
array([1., 2.], dtype=float32)
>>> hvd.shutdown()

The files: ``collectives`` (the functions), ``gradients`` (their gradients), ``graph`` (how they run, eagerly and in a
graph), ``adapter`` (tensors to arrays over the same memory), ``surface`` (what public functions have in common),
``compression``, ``functions`` (variables, objects), ``reduce`` (the gradients of a step), ``tape``, ``optimizer``,
``sync_batch_norm``, ``sessions`` (``tf.compat.v1``). What not every script uses is imported when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hora.config.quiet import importing_tensorflow as _importing

try:
    with _importing():
        import tensorflow as _tensorflow  # noqa: F401
except ImportError as _reason:
    raise ImportError(
        "hora.tensorflow needs TensorFlow, which is not installed. Install it, for example with: pip install"
        " tensorflow-cpu (or, with Hora: pip install 'hora[tensorflow]')."
    ) from _reason

from hora import basics as _basics
from hora.basics import *  # noqa: F403
from hora.errors import *  # noqa: F403  # said again for type checkers: a star's star is not followed
from hora.ops.later import later as _later
from hora.tensorflow import collectives as _collectives
from hora.tensorflow import rank_ops as _rank_ops
from hora.tensorflow.collectives import *  # noqa: F403
from hora.tensorflow.compression import Compression
from hora.tensorflow.rank_ops import *  # noqa: F403

_LATER = {
    "BroadcastGlobalVariablesHook": ".sessions",
    "DistributedGradientTape": ".tape",
    "DistributedOptimizer": ".optimizer",
    "PartialDistributedGradientTape": ".tape",
    "SyncBatchNormalization": ".sync_batch_norm",
    "allgather_object": ".functions",
    "broadcast_global_variables": ".functions",
    "broadcast_object": ".functions",
    "broadcast_object_fn": ".functions",
    "broadcast_variables": ".functions",
}

__all__ = ["Compression", *_LATER]
__all__ += _basics.__all__
__all__ += _collectives.__all__
__all__ += _rank_ops.__all__

if TYPE_CHECKING:
    from hora.tensorflow import elastic as elastic
    from hora.tensorflow.functions import *  # noqa: F403
    from hora.tensorflow.optimizer import DistributedOptimizer as DistributedOptimizer
    from hora.tensorflow.sessions import BroadcastGlobalVariablesHook as BroadcastGlobalVariablesHook
    from hora.tensorflow.sync_batch_norm import SyncBatchNormalization as SyncBatchNormalization
    from hora.tensorflow.tape import *  # noqa: F403
else:
    __getattr__, __dir__ = _later(__name__, {**_LATER, "elastic": ".elastic"})
