"""Every framework: rank 0 is killed while it trains, the other goes on, a newcomer joins, both end alike."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from pathlib import Path

import pytest
from tests.launch.jobs import clean_environment, hora, python

from hora.transport import shm

pytestmark = pytest.mark.skipif(not shm.available(), reason="the C core is not built")

# ``step(state)`` and ``weights(state)`` are the framework's; it trains until a newcomer has been in for a while.
LOOP = """
import os, signal
from hora.engine import session


def go(state):
    while state.together < 10:
        step(state)
        state.steps += 1
        state.together += session.generation() > 1 and session.size() == 2
        if session.generation() == 1 and state.steps == 7 and session.rank() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        state.commit()
    return weights(state)


train = hvd.elastic.run(go)
print("weights", train(state), flush=True)
"""

TORCH = """
import torch
import hora.torch as hvd
hvd.init()
torch.manual_seed(hvd.rank())
model = torch.nn.Linear(4, 2)
optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), 0.01), model.named_parameters())
state = hvd.elastic.TorchState(model, optimizer, steps=0, together=0)
def step(state):
    optimizer.zero_grad()
    model(torch.full((3, 4), 1.0 + hvd.rank())).square().sum().backward()
    optimizer.step()
def weights(state):
    return [float(w) for w in model.weight.flatten()]
"""

TENSORFLOW = """
import tensorflow as tf
import hora.tensorflow as hvd
hvd.init()
tf.random.set_seed(hvd.rank())
model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(2)])
optimizer = tf.keras.optimizers.Adam(0.01)
state = hvd.elastic.TensorFlowKerasState(model, optimizer, steps=0, together=0)
@tf.function
def compiled(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(x) ** 2)
    gradients = hvd.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
def step(state):
    compiled(tf.fill((3, 4), 1.0 + hvd.rank()))
def weights(state):
    return [float(w) for w in tf.reshape(model.variables[0], [-1])]
"""

KERAS = """
import keras, numpy as np
import hora.keras as hvd
hvd.init()
keras.utils.set_random_seed(hvd.rank())
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
state = hvd.elastic.KerasState(model, steps=0, together=0)
def step(state):
    model.train_on_batch(np.full((3, 4), 1.0 + hvd.rank(), "float32"), np.zeros((3, 2), "float32"))
def weights(state):
    return [float(w) for w in model.get_weights()[0].flatten()]
"""

JAX = """
import jax, jax.numpy as jnp
import hora.jax as hvd
hvd.init()
state = hvd.elastic.JaxState(w=jnp.arange(4.0) + hvd.rank(), steps=0, together=0)
@jax.jit
def compiled(w, x):
    return w - 0.01 * hvd.allreduce_gradients(jax.grad(lambda w: ((x @ w) ** 2).mean())(w))
def step(state):
    state.w = compiled(state.w, jnp.full((3, 4), 0.1 + hvd.rank()))
    state.w.block_until_ready()
def weights(state):
    return state.w.tolist()
"""

PROGRAMS = {"torch": TORCH, "tensorflow": TENSORFLOW, "keras": KERAS, "jax": JAX}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("framework", PROGRAMS)
def test_rank_0_is_killed_and_the_training_ends_alike_on_all(framework: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(framework) is None:
        if os.environ.get("HORA_TEST_REQUIRE_ALL") == "1":
            pytest.fail(f"{framework} is not installed")
        pytest.skip(f"{framework} is not installed")
    variables = clean_environment(KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3", OMP_NUM_THREADS="1")
    program = python(PROGRAMS[framework] + LOOP)
    done = subprocess.run(
        hora("run", "--min-np", "1", "--max-np", "2", "-np", "2", *program), env=variables, cwd=tmp_path,
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    ends = re.findall(r"\[(\d+)\]<stdout>:weights (.*)", done.stdout)
    assert len(ends) == 2 and ends[0][1] == ends[1][1], done.stdout + done.stderr
    assert "signal 9 (SIGKILL)" in done.stderr and "the job continues with generation 2" in done.stderr
