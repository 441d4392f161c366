"""Trains a small network with JAX and optax: ``plain.py`` in one process, ``scaled.py`` on many.

    python examples/jax/plain.py
    hora run -np 2 python examples/jax/scaled.py

Five lines differ. The data is made here: ten patterns of 28x28 pixels, in noise.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import hora.jax as hvd

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--images", type=int, default=20_000, help="images to train on")
parser.add_argument("--lr", type=float, default=0.01)
args = parser.parse_args()
BATCH = 64  # images that one process takes in a step

hvd.init()
random = np.random.default_rng(1)
patterns = random.normal(size=(10, 784)).astype(np.float32)
labels = random.integers(10, size=args.images + 2_000)
images = patterns[labels] + random.normal(scale=8, size=(len(labels), 784)).astype(np.float32)
test_images, test_labels, images, labels = images[:2_000], labels[:2_000], images[2_000:], labels[2_000:]
images, labels = images[hvd.rank() :: hvd.size()], labels[hvd.rank() :: hvd.size()]

keys = jax.random.split(jax.random.key(1))
parameters: Any = {
    "hidden": jax.random.normal(keys[0], (784, 100)) * 0.05,
    "out": jax.random.normal(keys[1], (100, 10)) * 0.1,
}
optimizer = hvd.DistributedOptimizer(optax.sgd(args.lr * hvd.size(), momentum=0.9))
parameters = hvd.broadcast_parameters(parameters, root_rank=0)
state = optimizer.init(parameters)


def logits(parameters: Any, images: Any) -> Any:
    return jax.nn.relu(images @ parameters["hidden"]) @ parameters["out"]


def step(parameters: Any, state: Any, images: Any, labels: Any) -> tuple[Any, Any]:
    def loss(parameters: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(logits(parameters, images), labels).mean()

    updates, state = optimizer.update(jax.grad(loss)(parameters), state)
    return optax.apply_updates(parameters, updates), state


compiled_step = jax.jit(step)


for epoch in range(args.epochs):
    started = time.perf_counter()
    for i in range(0, len(images) - BATCH + 1, BATCH):
        parameters, state = compiled_step(parameters, state, images[i : i + BATCH], labels[i : i + BATCH])
    accuracy = jnp.mean(jnp.argmax(logits(parameters, test_images), axis=1) == test_labels)
    print(f"epoch {epoch + 1}  accuracy {float(accuracy):.2%}  {time.perf_counter() - started:.1f} s", flush=True)
