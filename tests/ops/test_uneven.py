"""Ranks with different numbers of batches, in frameworks other than PyTorch: the error says so, with the numbers."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from tests.launch.jobs import run_hora

STEPS = """
import numpy as np
from hora.engine import session
from hora.engine.process_set import global_process_set
from hora.ops import host
from hora.types import ReduceOp, Reduction
session.init()
for batch in range(3 + session.rank()):
    host.allreduce([np.ones(2)], Reduction(ReduceOp.SUM), "other", global_process_set).wait()
    host.allreduce([np.ones(2)], Reduction(ReduceOp.SUM), "gradients", global_process_set, grouped=True).wait()
"""
TENSORFLOW = """
import tensorflow as tf
import hora.tensorflow as hvd
hvd.init()
weight = tf.Variable(tf.ones((4, 2)))
@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.ones((3, 4)) @ weight)
    (gradient,) = hvd.DistributedGradientTape(tape).gradient(loss, [weight])
    weight.assign_sub(0.1 * gradient)
for batch in range(3 + hvd.rank()):
    step()
"""
KERAS = """
import keras, numpy as np
import hora.keras as hvd
hvd.init()
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
n = 8 * (3 + hvd.rank())
model.fit(np.ones((n, 4)), np.ones((n, 2)), batch_size=8, verbose=0)
"""
JAX = """
import jax, jax.numpy as jnp, optax
import hora.jax as hvd
hvd.init()
weight = jnp.ones((4, 2))
optimizer = hvd.DistributedOptimizer(optax.sgd(0.1))
state = optimizer.init(weight)
@jax.jit
def step(weight, state):
    gradient = jax.grad(lambda weight: (jnp.ones((3, 4)) @ weight).sum())(weight)
    updates, state = optimizer.update(gradient, state)
    return optax.apply_updates(weight, updates), state
for batch in range(3 + hvd.rank()):
    weight, state = jax.block_until_ready(step(weight, state))
"""
SCRIPTS = {
    "tensorflow": (TENSORFLOW, ""), "keras on torch": (KERAS, "torch"), "jax": (JAX, "jax"),
}  # fmt: skip


def said(tmp_path: Path, script: str, **variables: str) -> str:
    (tmp_path / "train.py").write_text(script)
    done = run_hora("run", "-np", "2", sys.executable, tmp_path / "train.py", timeout_s=200, **variables)
    assert done.returncode == 1, done.stderr
    return done.stderr


def test_the_steps_of_gradients_are_told_and_of_nothing_else(tmp_path: Path) -> None:
    """Where what fails is no gradient, nothing is known of steps."""
    assert "steps together" not in said(tmp_path, STEPS)
    text = said(tmp_path, STEPS.replace('    host.allreduce([np.ones(2)], Reduction(ReduceOp.SUM), "other"', "    #"))
    assert "All ranks have done 3 steps together; this rank was in step 4." in text and "hvd.join()" in text


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", SCRIPTS)
def test_in_a_compiled_step(name: str, tmp_path: Path) -> None:
    """Hora's words alone are left of what TensorFlow and JAX make of them."""
    module = name.split()[0]
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    script, backend = SCRIPTS[name]
    text = said(tmp_path, script, **({"KERAS_BACKEND": backend} if backend else {}))
    assert "All ranks have done 3 steps together; this rank was in step 4." in text
    assert "hvd.join()" in text and "hora/ops/host.py" not in text and len(text.splitlines()) < 25, text
