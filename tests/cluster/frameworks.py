"""What a worker on one of several hosts does with another framework than torch: ``python frameworks.py NAME``.

NAME is ``tensorflow``, ``jax``, or ``keras-`` and a backend. It says ``NAME is right`` if the sums are, eager and
compiled, and if all workers end with the same weights.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np


def tensorflow() -> Any:
    import tensorflow as tf

    import hora.tensorflow as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    ours = tf.fill([100_000], float(rank + 1))
    total = size * (size + 1) / 2
    assert np.array_equal(hvd.allreduce(ours, op=hvd.Sum), np.full(100_000, total))
    mean = tf.function(lambda tensor: hvd.allreduce(tensor, op=hvd.Average, name="mean"))
    assert np.array_equal(mean(ours), np.full(100_000, total / size))
    gathered = hvd.allgather(tf.fill([rank + 1, 2], rank))
    assert np.array_equal(gathered, np.repeat(np.arange(size), np.arange(size) + 1)[:, None].repeat(2, axis=1))
    weight = tf.Variable(float(rank + 3))
    hvd.broadcast_variables([weight], root_rank=0)
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = weight * weight * float(rank)
    assert float(tape.gradient(loss, weight)) == 2 * 3.0 * np.arange(size).mean()
    return hvd


def jax() -> Any:
    import jax.numpy as jnp
    from jax import jit

    import hora.jax as hvd

    hvd.init()
    ours, total = jnp.full(100_000, hvd.rank() + 1.0), hvd.size() * (hvd.size() + 1) / 2
    assert np.array_equal(hvd.allreduce(ours, op=hvd.Sum), np.full(100_000, total))
    means = jit(hvd.allreduce_gradients)({"weight": ours})
    assert np.array_equal(means["weight"], np.full(100_000, total / hvd.size()))
    return hvd


def keras(backend: str) -> Any:
    os.environ["KERAS_BACKEND"] = backend
    import keras

    import hora.keras as hvd

    hvd.init()
    keras.utils.set_random_seed(hvd.rank())
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
    random = np.random.default_rng(hvd.rank())
    inputs, targets = random.random((16, 4), np.float32), random.random((16, 1), np.float32)
    first = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(inputs, targets, batch_size=4, verbose=0, shuffle=False, callbacks=[first])
    for weights in zip(*hvd.allgather_object(model.get_weights()), strict=True):
        assert all(np.array_equal(one, weights[0]) for one in weights)
    return hvd


if __name__ == "__main__":
    name, _, backend = sys.argv[1].partition("-")
    hvd = keras(backend) if backend else {"tensorflow": tensorflow, "jax": jax}[name]()
    assert hvd.size() == 4 and hvd.local_size() == 2
    print(sys.argv[1], "is right", flush=True)
