"""Training in TensorFlow, for `hora bench train --framework tensorflow`: a loop of one's own in a ``tf.function``.

``hora`` and ``limit`` differ in nothing but the tape: ``hora.tensorflow.DistributedGradientTape`` around it, or not.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hora.tensorflow as hvd
from hora.bench.contenders import TimedTask
from hora.bench.keras_models import NETWORKS, KerasNetwork, batches
from hora.bench.plan import LEARNING_RATE, MOMENTUM

__all__ = ["check", "make", "version"]

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)


def version() -> str:
    """What is measured."""
    return f"TensorFlow {tf.__version__}"


def make(key: str, name: str, seed: int, rank: int) -> TimedTask:
    """A contender's step as a task, found to lead where the mean gradient leads."""
    network = NETWORKS[name]
    data = [(tf.constant(images), tf.constant(labels)) for images, labels in batches(network, seed * 1000 + rank)]
    model, step = _build(key, network, seed)
    if key == "hora":
        limit, step_limit = _build("limit", network, seed)
        step_limit(*data[0])
        step(*data[0])
        check(model, limit)
    turns = itertools.cycle(data)
    return TimedTask([], lambda: step(*next(turns)), sums=False)


def _build(key: str, network: KerasNetwork, seed: int) -> tuple[Any, Callable[[Any, Any], Any]]:
    """A model, and what takes a step of it."""
    keras.utils.set_random_seed(seed)  # for weights and dropout, equal on all ranks and for all contenders
    model = network.make()
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.SGD(LEARNING_RATE, momentum=MOMENTUM)
    optimizer.build(model.trainable_variables)
    hvd.broadcast_variables(model.variables, root_rank=0)

    def step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        if key == "hora":
            tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return model, tf.function(step)


def check(model: Any, limit: Any) -> None:
    """Refuse to time a model whose first step was not that of the mean gradient. ``limit`` took the same step without
    communicating: the mean of that over the ranks is where it must have led, as a first step of SGD has no memory."""
    for variable, own in zip(model.trainable_variables, limit.trainable_variables, strict=True):
        expected = hvd.allreduce(tf.constant(own.numpy()), name="bench.by_hand", op=hvd.Average).numpy()
        if not np.allclose(variable.numpy(), expected, rtol=1e-4, atol=1e-5):
            furthest = np.abs(variable.numpy() - expected).max()
            raise AssertionError(
                f"Hora trained wrongly on rank {hvd.rank()}: after one step {variable.path} is up to {furthest:.3g}"
                " away from a step with the mean gradient. Its time would mean nothing."
            )
