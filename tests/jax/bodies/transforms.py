"""Collectives under jit, grad, vmap, scan, cond and checkpoint."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir
from tests.jax.data import array, check, ways, wide

from hora.jax import compiled


def _weights(rank: int, shape: tuple[int, ...]) -> Any:
    """What the loss of a rank weighs results with."""
    return array(100 + rank, shape)


def _sum_of_weights(size: int, shape: tuple[int, ...]) -> Any:
    return sum(wide(_weights(r, shape)) for r in range(size))


def gradients_of_what_is_elementwise(hvd: Any, rank: int, size: int) -> None:
    shape = (4, 3)
    total = _sum_of_weights(size, shape)

    def loss(collective: Any) -> Any:
        return jax.grad(lambda x: jnp.sum(collective(x) * _weights(rank, shape)))

    cases = {
        "sum": (lambda x: hvd.allreduce(x, name="g", op=hvd.Sum), total),
        "average": (lambda x: hvd.allreduce(x, name="g"), total / size),
        "factors": (
            lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5, name="g"), total
        ),
        "group": (lambda x: hvd.grouped_allreduce([x, x.astype(int)], name="g", op=hvd.Sum)[0], total),
        "broadcast": (lambda x: hvd.broadcast(x, 0, name="g"), total / size if rank == 0 else 0 * total),
    }  # fmt: skip
    for name, (collective, expected) in cases.items():
        for way, work in ways(loss(collective)):
            check(work(array(rank, shape)), expected, (name, way))


def gradients_of_what_moves_rows(hvd: Any, rank: int, size: int) -> None:
    rows = 2 * size
    weights = [wide(_weights(r, (rows * size + 1, 2))) for r in range(size)]
    mean = np.mean(weights, axis=0)

    def loss(collective: Any, shape: tuple[int, ...]) -> Any:
        return jax.grad(lambda x: jnp.sum(collective(x) * jnp.asarray(weights[rank][: shape[0]], jnp.float32)))

    for way, work in ways(loss(lambda x: hvd.allgather(x, name="rows"), (rows * size, 2))):
        check(work(array(rank, (rows, 2))), mean[rank * rows : (rank + 1) * rows], ("allgather", way))
    sent_back = np.concatenate([weights[r][2 * rank : 2 * rank + 2] for r in range(size)])
    for way, work in ways(loss(lambda x: hvd.alltoall(x, name="rows"), (rows, 2))):
        check(work(array(rank, (rows, 2))), sent_back, ("alltoall", way))
    own = rows // size + (1 if rank == 0 else 0)
    dealt = [weights[r][: rows // size + (r == 0)] for r in range(size)]
    for way, work in ways(loss(lambda x: hvd.reducescatter(x, name="rows", op=hvd.Sum), (own, 2))):
        check(work(array(rank, (rows + 1, 2))), size * np.concatenate(dealt), ("reducescatter", way))


def gradients_of_uneven_rows(hvd: Any, rank: int, size: int) -> None:
    """Outside jit, shapes may differ between ranks."""
    first, rows = sum(range(rank)) + rank, rank + 1
    everything = sum(range(1, size + 1))
    weights = [wide(_weights(r, (everything, 2))) for r in range(size)]
    own = array(rank, (rows, 2))
    gathered = jax.grad(lambda x: jnp.sum(hvd.allgather(x, name="uneven") * _weights(rank, (everything, 2))))(own)
    check(gathered, np.mean(weights, axis=0)[first : first + rows])
    splits = [1] * size  # and what is beyond stays at home

    def loss(x: Any) -> Any:
        return jnp.sum(hvd.alltoall(x, splits=splits, name="uneven")[0] * _weights(rank, (size, 2)))

    expected = np.stack([wide(_weights(r, (size, 2)))[rank] for r in range(size)])
    check(jax.grad(loss)(array(rank, (size + 2, 2))), np.concatenate([expected, np.zeros((2, 2))]))


def gradient_of_a_gradient(hvd: Any, rank: int, size: int) -> None:
    def cube(x: Any) -> Any:
        return jnp.sum(hvd.allreduce(x**3, name="cube", op=hvd.Sum))

    for way, work in ways(jax.grad(lambda x: jnp.sum(jax.grad(cube)(x)))):
        check(work(jnp.full(2, 2.0)), np.full(2, 12.0 * size * 1), way)


def batches(hvd: Any, rank: int, size: int) -> None:
    """A batch is sent once, whole, whichever axis it is."""
    batch = array(rank, (5, 4, 3))
    total = sum(wide(array(r, (5, 4, 3))) for r in range(size))
    for axis in range(3):
        mapped = jax.vmap(lambda x: hvd.allreduce(x, name="v", op=hvd.Sum), in_axes=axis, out_axes=axis)
        for way, work in ways(mapped):
            check(work(batch), total, (axis, way))
        every = [np.moveaxis(wide(array(r, (5, 4, 3))), axis, 0) for r in range(size)]
        gather = jax.vmap(lambda x: hvd.allgather(x, name="v"), in_axes=axis)
        for way, work in ways(gather):
            check(work(batch), np.concatenate(every, axis=1), (axis, way))
    per_example = jax.vmap(jax.grad(lambda x: jnp.sum(hvd.allreduce(x, name="v", op=hvd.Sum) ** 2)))
    for way, work in ways(per_example):
        check(work(batch), 2 * size * total, way)


def loops_and_branches(hvd: Any, rank: int, size: int) -> None:
    def looped(x: Any) -> Any:
        return jax.lax.scan(lambda c, _: (hvd.allreduce(c, name="loop", op=hvd.Sum), None), x, length=3)[0]

    def branched(x: Any, yes: Any) -> Any:
        return jax.lax.cond(yes, lambda: hvd.allreduce(x, name="branch", op=hvd.Sum), lambda: x)

    check(jax.jit(looped)(jnp.ones(2)), np.full(2, size**3))
    check(jax.jit(branched)(jnp.ones(2), True), np.full(2, size))
    check(jax.jit(branched)(jnp.ones(2), False), np.ones(2))
    again = jax.grad(jax.checkpoint(lambda x: jnp.sum(jnp.sin(hvd.allreduce(x, name="remat", op=hvd.Sum)))))
    check(jax.jit(again)(jnp.ones(2)), np.full(2, size * np.cos(size)))


def nothing_is_dropped_or_done_twice(hvd: Any, rank: int, size: int) -> None:
    """Not what nobody uses, nor what looks like another: a rank that did otherwise would leave the others waiting."""
    counted: list[int] = []
    real = compiled.JaxCall.carry_out

    def count(self: Any, *arguments: Any) -> None:
        counted.append(1)
        real(self, *arguments)

    compiled.JaxCall.carry_out = count
    try:

        def work(x: Any) -> Any:
            hvd.allreduce(x, name="unused")
            return hvd.allreduce(x, name="same", op=hvd.Sum) + hvd.allreduce(x, name="same", op=hvd.Sum)

        check(jax.jit(work)(jnp.ones(2)), np.full(2, 2 * size))
    finally:
        compiled.JaxCall.carry_out = real
    assert len(counted) == 3


def independent_collectives_keep_their_order(hvd: Any, rank: int, size: int) -> None:
    """Large ones, so that they are dispatched and not run at once; with one thread, any other order would hang."""
    xs = [array(rank, (300_000 + i,)) for i in range(12)]
    step = jax.jit(lambda xs: [hvd.allreduce(x * 2, name=f"o{i}", op=hvd.Sum) for i, x in enumerate(xs)])
    for _ in range(3):
        results = step(xs)
    for i, result in enumerate(results):
        check(result, 2 * sum(wide(array(r, (300_000 + i,))) for r in range(size)))


def beside_a_program_that_runs(hvd: Any, rank: int, size: int) -> None:
    """What is dispatched works in the background; other collectives may be called meanwhile."""
    x = array(rank, (500, 500))

    def work(x: Any) -> Any:
        for _ in range(20):
            x = jnp.tanh(x @ x / 1000)
        return hvd.allreduce(x, name="background", op=hvd.Sum)

    step = jax.jit(work)
    result = step(x)
    for i in range(5):
        check(hvd.allreduce(jnp.ones(3), name=f"beside.{i}", op=hvd.Sum), np.full(3, size))
    assert bool(jnp.all(jnp.isfinite(result)))


def on_other_devices(hvd: Any, rank: int, size: int) -> None:
    """The lowering that copies, for devices other than the CPU, tried on the CPU."""
    mlir.register_lowering(compiled.primitive, compiled.lower_with_copies, platform="cpu")
    try:
        check(
            jax.jit(lambda x: hvd.allreduce(x, name="copied", op=hvd.Sum))(array(rank)),
            sum(wide(array(r)) for r in range(size)),
        )
        check(
            jax.jit(lambda x: hvd.allgather(x, name="copied"))(jnp.ones((1, 2)) * rank), [[r, r] for r in range(size)]
        )
    finally:
        mlir.register_lowering(compiled.primitive, compiled._lower, platform="cpu")
