"""Gradients of the collectives are those that the table states, eagerly and in a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tests.tensorflow.data import both_ways, check, raises


def _gradient(inputs: Any, collective: Callable[[Any], Any], weight: Callable[[Any], Any]) -> Callable[[], Any]:
    """d(sum of weights times what the collective gives) / d inputs."""

    def work() -> Any:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            result = collective(inputs)
            loss = tf.reduce_sum(result * weight(result))
        return tape.gradient(loss, inputs)

    return work


def as_the_table_states(hvd: Any, rank: int, size: int) -> None:
    """The loss of rank r is (r + 1) times the sum of what it got, so the incoming gradients are r + 1."""

    def factor(result: Any) -> Any:
        return float(rank + 1)

    total = float(sum(range(1, size + 1)))
    own = tf.ones([size * 2, 3]) * (rank + 1)
    rows = 2 * size
    ones = np.ones((rows, 3), "float32")
    by_rows = np.repeat(np.arange(1, size + 1, dtype="float32"), 2)[:, None] * np.ones(3, "float32")
    cases: dict[str, tuple[Callable[[Any], Any], Any]] = {
        "sum": (lambda x: hvd.allreduce(x, op=hvd.Sum), ones * total),
        "average": (lambda x: hvd.allreduce(x), ones * total / size),
        "scaled": (lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0, postscale_factor=3.0), ones * 6 * total),
        "group": (lambda x: hvd.grouped_allreduce([x, x[:1]], op=hvd.Sum)[0], ones * total),
        "allgather": (lambda x: hvd.allgather(x), ones * total / size),
        "uneven allgather": (lambda x: hvd.allgather(x[: rank + 1]), _first_rows(ones, rank + 1) * total / size),
        "broadcast": (lambda x: hvd.broadcast(x, size - 1), ones * (total / size if rank == size - 1 else 0.0)),
        "alltoall": (lambda x: hvd.alltoall(x), by_rows),
        "alltoall, some stay": (lambda x: hvd.alltoall(x, [1] * size)[0], _one_each(ones, size)),
        "reducescatter sum": (lambda x: hvd.reducescatter(x, op=hvd.Sum), by_rows * size),
        "reducescatter average": (lambda x: hvd.reducescatter(x), by_rows),
        "fp16": (lambda x: hvd.allreduce(x, op=hvd.Sum, compression=hvd.Compression.fp16), ones * total),
    }
    for name, (collective, expected) in cases.items():
        for way, found in both_ways(_gradient(own, collective, factor)):
            check(tf.convert_to_tensor(found), expected.astype("float32"), f"{name} {way}")


def _first_rows(ones: Any, rows: int) -> Any:
    kept = np.zeros_like(ones)
    kept[:rows] = 1
    return kept


def _one_each(ones: Any, size: int) -> Any:
    sent = np.zeros_like(ones)
    sent[:size] = np.arange(1, size + 1, dtype="float32")[:, None]
    return sent


def of_gradients(hvd: Any, rank: int, size: int) -> None:
    """With y = sum of x over ranks, d/dx of y³ summed over ranks is 3 y² n; once more: 6 y n²."""
    own = tf.constant([1.0 + rank])
    y = sum(range(1, size + 1))

    def work() -> Any:
        with tf.GradientTape() as outer:
            outer.watch(own)
            with tf.GradientTape() as inner:
                inner.watch(own)
                cube = hvd.allreduce(own, op=hvd.Sum) ** 3
            first = inner.gradient(cube, own)
        return first, outer.gradient(first, own)

    for way, (first, second) in both_ways(work):
        check(first, np.array([3.0 * y * y * size], "float32"), way)
        check(second, np.array([6.0 * y * size * size], "float32"), way)


def of_what_has_none(hvd: Any, rank: int, size: int) -> None:
    work = _gradient(tf.ones([2]), lambda x: hvd.allreduce(x, op=hvd.Min), lambda result: 1.0)
    with raises(hvd.UsageError, "op=Min"):
        work()
    hvd.barrier()


def in_a_group_with_integers(hvd: Any, rank: int, size: int) -> None:
    own = tf.ones([2], tf.float64)

    def work() -> Any:
        with tf.GradientTape() as tape:
            tape.watch(own)
            numbers, floats = hvd.grouped_allreduce([tf.constant([rank]), own], op=hvd.Sum)
            gathered, _ = hvd.grouped_allgather([own, tf.constant([rank])])
            loss = tf.reduce_sum(floats) * 2.0 + tf.reduce_sum(gathered) + tf.cast(tf.reduce_sum(numbers), tf.float64)
        return tape.gradient(loss, own)

    for way, found in both_ways(work):
        check(found, np.full(2, 2.0 * size + 1.0), way)
