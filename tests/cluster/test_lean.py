"""Two hosts whose Python has one framework and neither torch nor mpi4py: nothing else is needed to train between them.

The environment is made of what is installed here: a virtual environment that sees every package but those.
"""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from tests.cluster.hosts import ROOT, Cluster
from tests.cluster.sshd import Sshd

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

JOB_S = 200.0
NOT_THERE = ("torch", "functorch", "mpi4py", "horovod", "nvidia")
FRAMEWORKS = ("tensorflow", "keras", "jax", "jaxlib")

# One step of SGD on a loss that differs by rank: the weight after it is known without any framework.
BEGIN = """
import importlib.util, os
import numpy as np
assert not any(importlib.util.find_spec(name) for name in ("torch", "mpi4py")), "this environment is not lean"
"""
END = """
found = np.asarray(weight, dtype="float32")
expected = start - 0.1 * np.mean([2 * start * (r + 1) for r in range(2)], axis=0)
assert np.allclose(found, expected, rtol=1e-6), (found, expected)
assert not any(importlib.util.find_spec(name) for name in ("torch", "mpi4py"))
from hora.engine import session
os.write(1, f"rank {hvd.rank()} of {hvd.size()} trained over {session.engine().transport}\\n".encode())
hvd.shutdown()
"""
PROGRAMS = {
    "tensorflow": """
import tensorflow as tf
import hora.tensorflow as hvd
hvd.init()
start = np.arange(100_000, dtype="float32") / 1e5
variable = tf.Variable(start * (hvd.rank() == 0))
hvd.broadcast_variables([variable], root_rank=0)
with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
    loss = tf.reduce_sum(variable * variable) * (hvd.rank() + 1.0)
optimizer = tf.keras.optimizers.SGD(0.1)
optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])
weight = variable.numpy()
""",
    "jax": """
import jax, optax
import jax.numpy as jnp
import hora.jax as hvd
hvd.init()
start = np.arange(100_000, dtype="float32") / 1e5
weight = hvd.broadcast_parameters(jnp.asarray(start * (hvd.rank() == 0)))
optimizer = hvd.DistributedOptimizer(optax.sgd(0.1))
state = optimizer.init(weight)

@jax.jit
def step(weight, state):
    gradient = jax.grad(lambda w: (w * w).sum() * (hvd.rank() + 1.0))(weight)
    updates, state = optimizer.update(gradient, state, weight)
    return optax.apply_updates(weight, updates), state

weight, state = step(weight, state)
""",
}


def lean_python(place: Path, framework: str) -> Path:
    """A Python with everything that is installed here but torch, mpi4py and other frameworks than that."""
    without = {*NOT_THERE, *FRAMEWORKS} - {"tensorflow": {"tensorflow", "keras"}, "jax": {"jax", "jaxlib"}}[framework]
    venv.create(place / "env", with_pip=False, symlinks=True)
    packages = place / "packages"
    packages.mkdir()
    for folder in {Path(path) for path in (*sys.path, sysconfig.get_path("purelib")) if path.endswith("-packages")}:
        for entry in folder.iterdir():
            name = entry.name.partition(".")[0].partition("-")[0]
            if name not in without and entry.suffix != ".pth" and not (packages / entry.name).exists():
                (packages / entry.name).symlink_to(entry)
    (packages / "hora").unlink(missing_ok=True)
    (packages / "hora").symlink_to(ROOT / "src" / "hora")
    [site] = (place / "env" / "lib").glob("python*/site-packages")
    (site / "packages.pth").write_text(str(packages))
    return place / "env" / "bin" / "python"


@pytest.mark.parametrize("framework", ["tensorflow", "jax"])
def test_a_step_between_hosts(two_hosts: Cluster, ssh: Sshd, tmp_path: Path, framework: str) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    python = lean_python(tmp_path, framework)
    script = tmp_path / "train.py"
    script.write_text(BEGIN + PROGRAMS[framework] + END)
    command = [python, "-m", "hora", "run", "-H", "h1:1,h2:1", python, script]
    done = two_hosts.login.run(command, JOB_S, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    for rank in range(2):
        assert f"rank {rank} of 2 trained over shm+tcp" in done.stdout, done.stdout
    two_hosts.wait_until_gone(str(script))
