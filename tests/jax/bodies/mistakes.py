"""What is wrong is said, on every rank, and the next collective works."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tests.jax.data import check, raises

from hora.errors import MismatchError, UsageError


def shapes_that_differ(hvd: Any, rank: int, size: int) -> None:
    if size == 1:
        return
    with raises(MismatchError, "mistakes.py", "rank 0", "rank 1"):
        hvd.allreduce(jnp.ones(2 + rank), name="shapes")
    for n in (2, 300_000):  # run at once, and dispatched
        with raises(jax.errors.JaxRuntimeError, "mistakes.py", "rank 0", "rank 1"):
            jax.jit(lambda x: hvd.allreduce(x, name="shapes"))(jnp.ones(n + rank)).block_until_ready()
        fine = jax.jit(lambda x: hvd.allreduce(x, name="fine", op=hvd.Sum))(jnp.ones(2))
        check(fine, np.full(2, size), n)


def rows_that_differ_in_a_program(hvd: Any, rank: int, size: int) -> None:
    if size == 1:
        return
    for collective in (hvd.allgather, hvd.alltoall):
        rows = size * (1 + rank)
        with raises(jax.errors.JaxRuntimeError, "all ranks must bring equally many rows", "mistakes.py"):
            jax.jit(lambda x, c=collective: c(x, name="rows"))(jnp.ones((rows, 2))).block_until_ready()
    hvd.barrier()


def what_no_program_can_do(hvd: Any, rank: int, size: int) -> None:
    with raises(UsageError, "alltoall with splits under jit"):
        jax.jit(lambda x: hvd.alltoall(x, splits=[1] * size))(jnp.ones((size, 1)))
    with raises(UsageError, "_async under jit"):
        jax.jit(lambda x: hvd.allreduce_async(x))(jnp.ones(2))
    with raises(UsageError, "op=Max", "stop_gradient"):
        jax.grad(lambda x: jnp.sum(hvd.allreduce(x, name="max", op=hvd.Max)))(jnp.ones(2))
    with raises(UsageError, "Adasum", "vmap"):
        jax.vmap(lambda x: hvd.allreduce(x, op=hvd.Adasum))(jnp.ones((2, 2)))
    with raises(UsageError, "0-d"):
        jax.jit(lambda x: hvd.allgather(x))(jnp.float32(1))


def what_cannot_be_carried(hvd: Any, rank: int, size: int) -> None:
    for value, words in (
        ("text", ("a str was given",)),
        ([jnp.ones(2)], ("a list was given", "grouped")),
        (jnp.ones(2, jnp.complex64), ("complex64", "Hora carries")),
        (jax.random.key(1), ("key_data",)),
    ):
        with raises(UsageError, *words):
            hvd.allreduce(value)
    with raises(UsageError, "complex64"):
        jax.jit(hvd.allreduce)(jnp.ones(2, jnp.complex64))
    with raises(UsageError, "empty list"):
        hvd.grouped_allreduce([])
    with raises(UsageError, "Average of bool"):
        hvd.allreduce(jnp.ones(2, bool))
    with raises(UsageError, "backward_passes_per_step=0"):
        hvd.DistributedOptimizer(None, backward_passes_per_step=0)
    check(hvd.allreduce(2.0, name="number"), 2.0)
    check(hvd.allreduce(np.ones(2, np.float32), name="numpy"), np.ones(2))
