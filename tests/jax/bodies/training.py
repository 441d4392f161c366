"""Training: two workers compute what one with twice the batch computes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tests import coarse
from tests.jax.data import check

BATCH, STEPS = 4, 3


def _parameters() -> Any:
    random = np.random.default_rng(3)
    return {
        "hidden": {"w": jnp.asarray(random.normal(size=(5, 8)), jnp.float32), "b": jnp.zeros(8)},
        "out": [jnp.asarray(random.normal(size=(8, 2)), jnp.float32), None],
    }


def _loss(parameters: Any, x: Any, y: Any) -> Any:
    hidden = jnp.tanh(x @ parameters["hidden"]["w"] + parameters["hidden"]["b"])
    return jnp.mean((hidden @ parameters["out"][0] - y) ** 2)


def _data(size: int, step: int) -> tuple[Any, Any]:
    random = np.random.default_rng(step)
    return (
        jnp.asarray(random.normal(size=(BATCH * size, 5)), jnp.float32),
        jnp.asarray(random.normal(size=(BATCH * size, 2)), jnp.float32),
    )


def _train(optimizer: Any, ranks: range, size: int, steps: int = STEPS, compiled: bool = True) -> Any:
    def step(parameters: Any, state: Any, x: Any, y: Any) -> Any:
        gradients = jax.grad(_loss)(parameters, x, y)
        updates, state = optimizer.update(gradients, state, parameters)
        return optax.apply_updates(parameters, updates), state

    run = jax.jit(step, donate_argnums=(0, 1)) if compiled else step
    parameters = _parameters()
    state = optimizer.init(parameters)
    for i in range(steps):
        x, y = _data(size, i)
        part = slice(BATCH * ranks.start, BATCH * ranks.stop)
        parameters, state = run(parameters, state, x[part], y[part])
    return parameters


def _same(found: Any, expected: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), found, expected)


def equals_one_worker_with_all_of_the_batch(hvd: Any, rank: int, size: int) -> None:
    for make in (lambda: optax.sgd(0.1, momentum=0.9), lambda: optax.adam(0.05)):
        expected = _train(make(), range(size), size)
        for compiled in (True, False):
            distributed = hvd.DistributedOptimizer(make())
            _same(_train(distributed, range(rank, rank + 1), size, compiled=compiled), expected)
        assert jax.tree.structure(distributed.init(_parameters())) == jax.tree.structure(make().init(_parameters()))


def predivide_and_sum(hvd: Any, rank: int, size: int) -> None:
    expected = _train(optax.sgd(0.1), range(size), size)
    predivided = hvd.DistributedOptimizer(optax.sgd(0.1), gradient_predivide_factor=4.0)
    summed = hvd.DistributedOptimizer(optax.sgd(0.1 / size), op=hvd.Sum)
    for optimizer in (predivided, summed):
        _same(_train(optimizer, range(rank, rank + 1), size), expected)


def compression(hvd: Any, rank: int, size: int) -> None:
    exact = hvd.allreduce_gradients(_gradients(rank, size))
    for compressor, tolerance in ((hvd.Compression.fp16, 2e-3), (hvd.Compression.bf16, 2e-2)):
        found = jax.jit(lambda g, c=compressor: hvd.allreduce_gradients(g, compression=c))(_gradients(rank, size))
        jax.tree.map(lambda a, b, t=tolerance: np.testing.assert_allclose(a, b, rtol=t, atol=t), found, exact)
        assert found["hidden"]["w"].dtype == jnp.float32
    mean = [_gradients(r, size)["hidden"]["w"] for r in range(size)]
    check(exact["hidden"]["w"], np.mean(mean, axis=0))
    assert exact["out"][1] is None


def _gradients(rank: int, size: int) -> Any:
    x, y = _data(size, 0)
    part = slice(BATCH * rank, BATCH * (rank + 1))
    return jax.grad(_loss)(_parameters(), x[part], y[part])


def several_passes_a_step(hvd: Any, rank: int, size: int) -> None:
    """The gradients of two passes are added, as in Horovod, or averaged."""
    x, y = zip(*(_data(size, i) for i in range(2)), strict=True)
    mean = jax.tree.map(lambda a, b: (a + b) / 2, *(jax.grad(_loss)(_parameters(), x[i], y[i]) for i in range(2)))
    for average, factor in ((False, 2.0), (True, 1.0)):
        optimizer = hvd.DistributedOptimizer(
            optax.sgd(0.1), backward_passes_per_step=2, average_aggregated_gradients=average
        )
        expected = jax.tree.map(lambda p, g, f=factor: p - 0.1 * f * g, _parameters(), mean)
        for compiled in (True, False):
            # Both passes see the first parameters, because the first pass changes nothing.
            _same(_train(optimizer, range(rank, rank + 1), size, steps=2, compiled=compiled), expected)


def adasum(hvd: Any, rank: int, size: int) -> None:
    if size & (size - 1):
        return  # it combines in pairs
    optimizer = hvd.DistributedOptimizer(optax.sgd(1.0), op=hvd.Adasum)
    updates, _ = optimizer.update({"w": jnp.eye(4)[rank]}, optimizer.init({"w": jnp.zeros(4)}))
    check(updates["w"], -np.eye(4)[:size].sum(axis=0))  # orthogonal: they add up


def parameters_of_the_root(hvd: Any, rank: int, size: int) -> None:
    mine = {
        "w": jnp.full((2, 3), float(rank)),
        "half": jnp.full(3, rank, jnp.bfloat16),
        "unsigned": jnp.full(3, rank, jnp.uint32),
        "complex": jnp.full(2, rank, jnp.complex64),
        "key": jax.random.key(rank),
        "numpy": np.full(2, rank, np.int64),
        "step": rank,
        "name": f"rank {rank}",
        "none": None,
    }
    root = size - 1
    found = hvd.broadcast_parameters(mine, root_rank=root)
    assert found["step"] == root and found["name"] == f"rank {root}" and found["none"] is None
    assert isinstance(found["numpy"], np.ndarray) and found["numpy"].tolist() == [root, root]
    assert jnp.array_equal(jax.random.key_data(found["key"]), jax.random.key_data(jax.random.key(root)))
    for name in ("w", "half", "unsigned", "complex"):
        assert found[name].dtype == mine[name].dtype and found[name].shape == mine[name].shape
        assert bool(jnp.all(found[name] == root)), name
    compiled = jax.jit(lambda tree: hvd.broadcast_parameters(tree, root_rank=root))({"w": mine["w"]})
    assert bool(jnp.all(compiled["w"] == root))


def compressors_with_a_memory(hvd: Any, rank: int, size: int) -> None:
    """They get arrays on the host, from a compiled program too."""
    for compiled in (False, True):
        compression = coarse.Coarse()
        optimizer = hvd.DistributedOptimizer(optax.sgd(1.0), compression=compression, name=f"coarse.{compiled}")
        state = optimizer.init({"w": jnp.zeros((2, 3))})
        update = jax.jit(optimizer.update) if compiled else optimizer.update
        for step, expected in enumerate(coarse.averaged(size, 3)):
            updates, state = update({"w": jnp.asarray(coarse.gradient(rank, step))}, state)
            np.testing.assert_allclose(-np.asarray(updates["w"]), expected, rtol=1e-6)
        assert compression.raw_bytes == 3 * 24
