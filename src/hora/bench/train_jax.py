"""Training in JAX, for `hora bench train --framework jax`: the whole step is one compiled program.

``hora`` and ``limit`` differ in nothing but the optimizer: ``hora.jax.DistributedOptimizer`` around the same optax
optimizer, or not.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import hora.jax as hvd
from hora.bench.contenders import TimedTask
from hora.bench.jax_models import NETWORKS, JaxNetwork, loss
from hora.bench.plan import BATCHES, LEARNING_RATE, MOMENTUM

__all__ = ["make", "version"]

Batch = tuple[Any, Any]


def version() -> str:
    """What is measured."""
    return f"JAX {jax.__version__}"


def make(key: str, name: str, seed: int, rank: int) -> TimedTask:
    """A contender's step as a task, found to lead where the mean gradient leads."""
    network = NETWORKS[name]
    batches = _batches(network, seed * 1000 + rank)
    optimizer = optax.sgd(LEARNING_RATE, MOMENTUM)
    if key == "hora":
        optimizer = hvd.DistributedOptimizer(optimizer, name=f"bench.{name}")
    step = _step(network, optimizer)
    parameters = hvd.broadcast_parameters(network.parameters(seed))
    state = optimizer.init(parameters)
    key_of_rank = jax.random.key(seed + rank)
    if key == "hora":
        _check(network, step, parameters, state, batches[0], key_of_rank)
    data = itertools.cycle(batches)

    def call() -> None:
        nonlocal parameters, state
        parameters, state, found = step(parameters, state, *next(data), key_of_rank)
        jax.block_until_ready(found)

    return TimedTask([], call, sums=False)


def _step(network: JaxNetwork, optimizer: Any) -> Callable[..., Any]:
    def step(parameters: Any, state: Any, images: Any, labels: Any, key: Any) -> tuple[Any, Any, Any]:
        found, gradients = jax.value_and_grad(lambda p: loss(network, p, images, labels, key))(parameters)
        updates, state = optimizer.update(gradients, state, parameters)
        return optax.apply_updates(parameters, updates), state, found

    compiled: Callable[..., Any] = jax.jit(step, donate_argnums=(0, 1))
    return compiled


def _batches(network: JaxNetwork, seed: int) -> list[Batch]:
    random = np.random.default_rng(seed)
    made = []
    for _ in range(BATCHES):
        images = jnp.asarray(random.standard_normal((network.batch, *network.shape), np.float32))
        made.append((images, jnp.asarray(random.integers(network.classes, size=network.batch))))
    return made


def _check(network: JaxNetwork, step: Callable[..., Any], parameters: Any, state: Any, batch: Batch, key: Any) -> None:
    """Refuse to time a step that is not that of the mean gradient."""
    own = jax.jit(jax.grad(lambda p: loss(network, p, *batch, key)))(parameters)
    mean = jax.tree.map(lambda gradient: hvd.allreduce(gradient, name="bench.by_hand", op=hvd.Average), own)
    expected = jax.tree.map(lambda p, gradient: p - LEARNING_RATE * gradient, parameters, mean)
    copies = jax.tree.map(jnp.copy, (parameters, state))  # the step overwrites what it is given
    found, _, _ = step(*copies, *batch, key)
    for path, distance in jax.tree_util.tree_leaves_with_path(
        jax.tree.map(lambda a, b: float(jnp.max(jnp.abs(a - b))), found, expected)
    ):
        if not distance < 1e-4:
            raise AssertionError(
                f"hora.jax trained wrongly on rank {hvd.rank()}: after one step {jax.tree_util.keystr(path)} is up to"
                f" {distance:.3g} away from a step with the mean gradient. Its time would mean nothing."
            )
