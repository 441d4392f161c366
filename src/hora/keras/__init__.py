"""Hora for Keras 3, on TensorFlow, PyTorch and JAX alike: Horovod's names, with its meanings.

>>> import keras
>>> import hora.keras as hvd
>>> hvd.init()
>>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
>>> optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1 * hvd.size()))
>>> model.compile(optimizer=optimizer, loss="mse")
>>> images, labels = keras.ops.ones((4, 2)), keras.ops.ones((4, 1))
>>> history = model.fit(images, labels, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
>>> hvd.shutdown()

The files: ``optimizer`` (``DistributedOptimizer``), ``gradients`` (what is done with those of a step), ``adapter`` (the
backends), ``collectives`` (on values), ``functions`` (variables and files), ``callbacks``, ``elastic``. They, and the
front-end of the backend, are imported when they are first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hora.config.quiet import importing_tensorflow as _importing

try:
    with _importing():
        import keras as _keras
except ImportError as _error:
    raise ImportError(
        f"hora.keras needs Keras 3 and the framework it runs on, and one of them is missing here ({_error}). Install"
        " them, for example with: pip install 'hora[keras]' tensorflow-cpu; and say which framework with"
        " KERAS_BACKEND=tensorflow, torch or jax."
    ) from _error
if int(_keras.__version__.split(".")[0]) < 3:
    raise ImportError(
        f"hora.keras needs Keras 3, and Keras {_keras.__version__} is installed here. Update it with: pip install"
        " 'keras>=3.4'; or stay with Keras 2 and train with hora.tensorflow.DistributedGradientTape."
    )

from hora import basics as _basics
from hora.basics import *  # noqa: F403
from hora.errors import *  # noqa: F403  # said again for type checkers: a star's star is not followed
from hora.ops.later import later as _later

_LATER = {
    "Compression": f"hora.{_keras.config.backend()}",  # each framework has its own, for its own tensors
    "DistributedOptimizer": ".optimizer",
    "PartialDistributedOptimizer": ".optimizer",
    "allgather": ".collectives",
    "allgather_object": "hora.ops.objects",
    "allreduce": ".collectives",
    "barrier": ".collectives",
    "broadcast": ".collectives",
    "broadcast_global_variables": ".functions",
    "broadcast_model": ".functions",
    "broadcast_object": "hora.ops.objects",
    "broadcast_variables": ".functions",
    "callbacks": ".callbacks",
    "elastic": ".elastic",
    "load_model": ".functions",
    "reducescatter": ".collectives",
}

__all__ = [*_LATER]
__all__ += _basics.__all__

if TYPE_CHECKING:
    from hora.keras import callbacks as callbacks
    from hora.keras import elastic as elastic
    from hora.keras.collectives import *  # noqa: F403
    from hora.keras.functions import *  # noqa: F403
    from hora.keras.optimizer import DistributedOptimizer as DistributedOptimizer
    from hora.keras.optimizer import PartialDistributedOptimizer as PartialDistributedOptimizer
    from hora.ops.objects import allgather_object as allgather_object
    from hora.ops.objects import broadcast_object as broadcast_object

    Compression: Any
else:
    __getattr__, __dir__ = _later(__name__, _LATER)
