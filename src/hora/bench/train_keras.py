"""Training in Keras, for `hora bench train --framework keras`: a compiled model, on TensorFlow.

``hora`` and ``limit`` differ in nothing but the optimizer: ``hora.keras.DistributedOptimizer`` around it, or not.
"""

from __future__ import annotations

import itertools
from typing import Any

import keras

import hora.keras as hvd
from hora.bench.contenders import TimedTask
from hora.bench.keras_models import NETWORKS, KerasNetwork, batches
from hora.bench.plan import LEARNING_RATE, MOMENTUM
from hora.bench.train_tensorflow import check

__all__ = ["make", "version"]


def version() -> str:
    """What is measured."""
    return f"Keras {keras.__version__} on {keras.config.backend()}"


def make(key: str, name: str, seed: int, rank: int) -> TimedTask:
    """A contender's step as a task, found to lead where the mean gradient leads."""
    network = NETWORKS[name]
    data = batches(network, seed * 1000 + rank)
    model = _build(key, network, seed)
    if key == "hora":
        limit = _build("limit", network, seed)
        limit.train_on_batch(*data[0])
        model.train_on_batch(*data[0])
        check(model, limit)
    turns = itertools.cycle(data)
    return TimedTask([], lambda: model.train_on_batch(*next(turns)), sums=False)


def _build(key: str, network: KerasNetwork, seed: int) -> Any:
    keras.utils.set_random_seed(seed)  # for weights and dropout, equal on all ranks and for all contenders
    model = network.make()
    optimizer: Any = keras.optimizers.SGD(LEARNING_RATE, momentum=MOMENTUM)
    if key == "hora":
        optimizer = hvd.DistributedOptimizer(optimizer)
    model.compile(optimizer=optimizer, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    hvd.broadcast_variables(model.variables, root_rank=0)
    return model
