"""What is special about graphs: order, waiting, control flow, operations that are evaluated when they run."""

from __future__ import annotations

import io
from contextlib import redirect_stderr
from typing import Any

import numpy as np
import tensorflow as tf
from tests.tensorflow.data import check


def opposite_orders_in_one_function(hvd: Any, rank: int, size: int) -> None:
    """TensorFlow has one thread here: a rank that waited for its first collectives would never begin its last."""
    letters = list("abcdefgh")

    @tf.function
    def step(x: Any) -> list[Any]:
        order = letters if rank % 2 else letters[::-1]
        found = {name: hvd.allreduce(x, name=f"opposite.{name}", op=hvd.Sum) * 2.0 for name in order}
        return [found[name] for name in letters]

    assert tf.config.threading.get_inter_op_parallelism_threads() == 1
    for i in range(20):
        for result in step(tf.constant([float(i)])):
            check(result, np.array([2.0 * i * size], "float32"))
    # It must not be by chance, either: which of two operations that could run is taken first is TensorFlow's affair.
    operations = step.get_concrete_function(tf.constant([0.0])).graph.get_operations()
    begins = [op for op in operations if op.name.startswith("hora_begin")]
    waits = [op for op in operations if op.name.startswith("hora_wait")]
    assert len(begins) == len(waits) == len(letters)
    for i, wait in enumerate(waits):
        assert set(begins[i + 1 :]) <= set(wait.control_inputs)


def effects_keep_the_order_of_the_program(hvd: Any, rank: int, size: int) -> None:
    """What depends on a result by an effect (a print, a variable) may come before the next collective begins."""
    kept = tf.Variable([0.0])

    @tf.function
    def step(x: Any) -> Any:
        first = hvd.allreduce(x, op=hvd.Sum)
        tf.print("first", first, output_stream="file:///dev/null")
        kept.assign(first)
        second = hvd.allreduce(kept + x, op=hvd.Sum)
        kept.assign_add(second)
        return hvd.allreduce(kept, op=hvd.Max), first

    for _ in range(3):
        last, first = step(tf.constant([1.0]))
        check(first, np.array([size], "float32"))
        check(last, np.array([size + size * (size + 1.0)], "float32"))


def results_that_nobody_uses(hvd: Any, rank: int, size: int) -> None:
    @tf.function
    def step(x: Any) -> Any:
        hvd.allreduce(x, name="unused")
        hvd.allgather(x, name="unused")
        return x + 1.0

    for _ in range(5):
        check(step(tf.ones([2])), np.full(2, 2.0, "float32"))
    from hora.tensorflow import graph

    assert not graph._under_way


def loops_and_branches(hvd: Any, rank: int, size: int) -> None:
    @tf.function
    def step(n: Any, wanted: Any) -> Any:
        total = tf.zeros([2])
        for i in tf.range(n):
            total += hvd.allreduce(tf.ones([2]) * tf.cast(i, tf.float32), op=hvd.Sum, name="in a loop")
        if wanted:
            total = hvd.allreduce(total, op=hvd.Sum)
        return total

    check(step(tf.constant(4), tf.constant(False)), np.full(2, 6.0 * size, "float32"))
    check(step(tf.constant(4), tf.constant(True)), np.full(2, 6.0 * size * size, "float32"))


def unknown_shapes(hvd: Any, rank: int, size: int) -> None:
    @tf.function(input_signature=[tf.TensorSpec(None, tf.float32)])
    def step(x: Any) -> Any:
        return hvd.allgather(x), hvd.allreduce(x[:1], op=hvd.Sum), hvd.reducescatter(hvd.allgather(x), op=hvd.Sum)

    gathered, summed, _ = step(tf.ones([rank + 1, 2]))
    assert gathered.shape == (sum(range(1, size + 1)), 2)
    check(summed, np.full((1, 2), size, "float32"))

    @tf.function
    def shapes(x: Any) -> None:
        assert hvd.allreduce(x).shape == x.shape
        assert hvd.allgather(x).shape.as_list() == [None, 3]

    shapes(tf.ones([2, 3]))


def retraced_on_one_rank_only(hvd: Any, rank: int, size: int) -> None:
    @tf.function
    def step(x: Any, _: int) -> Any:
        return hvd.allreduce(x, op=hvd.Sum)

    for i in range(4):
        check(step(tf.ones([2]), i if rank == 0 else 0), np.full(2, size, "float32"))


def operations_that_say_who_and_where(hvd: Any, rank: int, size: int) -> None:
    @tf.function
    def who() -> Any:
        return hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op(), hvd.process_set_included_op()

    expected = [rank, size, hvd.local_rank(), hvd.local_size(), 1]
    assert [int(number) for number in who()] == expected
    hvd.shutdown()
    with redirect_stderr(io.StringIO()):
        try:
            who()
        except tf.errors.InvalidArgumentError as error:
            assert "init()" in str(error)
        else:
            raise AssertionError("asked while not initialised")
    hvd.init()
    assert [int(number) for number in who()] == expected


def joining_and_barriers(hvd: Any, rank: int, size: int) -> None:
    for _ in range(rank):
        hvd.allreduce(tf.ones([2]), name="uneven", op=hvd.Sum)
    last = int(hvd.join())
    assert last == size - 1 or size == 1

    @tf.function
    def step(x: Any) -> Any:
        result = hvd.allreduce(x, op=hvd.Sum)
        hvd.barrier()
        return result

    check(step(tf.ones([2])), np.full(2, size, "float32"))
