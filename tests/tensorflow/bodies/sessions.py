"""``tf.compat.v1``: optimizers of its kind, eagerly, in functions and in sessions, and what sessions need besides."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from tests.tensorflow.data import raises

RATE = 0.1


def _expected(start: float, steps: int, factor: float) -> float:
    """Gradient descent on factor · w²."""
    for _ in range(steps):
        start -= RATE * 2 * factor * start
    return start


def optimizers_eagerly_and_in_functions(hvd: Any, rank: int, size: int) -> None:
    mean = sum(range(1, size + 1)) / size
    for wrapped in (False, True):
        for options, factor in (({}, mean), ({"op": hvd.Sum}, mean * size), ({"gradient_predivide_factor": 2.0}, mean)):
            weight = tf.Variable(1.0)
            optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(RATE), **options)

            def step(optimizer: Any = optimizer, weight: Any = weight) -> None:
                optimizer.minimize(lambda: weight * weight * float(rank + 1), var_list=[weight])

            run = tf.function(step) if wrapped else step
            for _ in range(3):
                run()
            np.testing.assert_allclose(weight.numpy(), _expected(1.0, 3, factor), 1e-5)


def several_passes_a_step(hvd: Any, rank: int, size: int) -> None:
    mean = sum(range(1, size + 1)) / size
    for wrapped in (False, True):
        for averaged in (False, True):
            weight, other = tf.Variable(1.0), tf.Variable(1.0)
            optimizer = hvd.DistributedOptimizer(
                tf.compat.v1.train.GradientDescentOptimizer(RATE), backward_passes_per_step=2,
                average_aggregated_gradients=averaged,
            )  # fmt: skip
            optimizer.register_local_var(other)

            def step(optimizer: Any = optimizer, weight: Any = weight, other: Any = other) -> None:
                optimizer.minimize(lambda: (weight * weight + other) * float(rank + 1), var_list=[weight, other])

            run = tf.function(step) if wrapped else step
            run()
            assert float(weight) == 1.0
            for _ in range(3):
                run()
            np.testing.assert_allclose(weight.numpy(), _expected(1.0, 2, mean * (1 if averaged else 2)), 1e-5)
            passes = 1 if averaged else 2
            np.testing.assert_allclose(other.numpy(), 1.0 - 2 * RATE * passes * (rank + 1) / size, 1e-5)


def sessions_with_a_hook(hvd: Any, rank: int, size: int) -> None:
    mean = sum(range(1, size + 1)) / size
    for passes in (1, 2):
        with tf.Graph().as_default():
            weight = tf.compat.v1.get_variable("weight", initializer=float(rank + 1))
            table = tf.compat.v1.get_variable("table", initializer=tf.ones([3, 2]) * float(rank))
            step = tf.compat.v1.train.get_or_create_global_step()
            loss = weight * weight * float(rank + 1) + 0.0 * tf.reduce_sum(tf.gather(table, [rank]))
            optimizer = hvd.DistributedOptimizer(
                tf.compat.v1.train.MomentumOptimizer(RATE, 0.0), backward_passes_per_step=passes
            )
            train = optimizer.minimize(loss, global_step=step)
            assert list(optimizer.get_slot_names()) == ["momentum"] and len(optimizer.variables()) == 2 + 3 * (
                passes - 1
            )
            hook = hvd.BroadcastGlobalVariablesHook(0)
            with tf.compat.v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
                started, rows = session.run([weight, table])
                for _ in range(2 * passes):
                    session.run(train)
                ended, steps = session.run([weight, step])
        assert started == 1.0 and (rows == 0.0).all() and steps == 2
        np.testing.assert_allclose(ended, _expected(1.0, 2, mean * passes), 1e-5)


def only_what_is_asked_for_runs(hvd: Any, rank: int, size: int) -> None:
    with tf.Graph().as_default():
        a = hvd.allreduce(tf.constant([1.0]), op=hvd.Sum, name="session.a")
        b = hvd.allreduce(tf.constant([2.0]), op=hvd.Sum, name="session.b")
        gradient = tf.gradients(a * 3.0, a)[0]
        with tf.compat.v1.Session() as session:
            assert session.run(a)[0] == size and session.run(b)[0] == 2 * size and session.run(gradient)[0] == 3.0


def broadcasting_global_variables_wants_a_graph(hvd: Any, rank: int, size: int) -> None:
    with raises(RuntimeError, "broadcast_variables"):
        hvd.broadcast_global_variables(0)


def optimizers_that_are_refused(hvd: Any, rank: int, size: int) -> None:
    plain = tf.compat.v1.train.GradientDescentOptimizer(RATE)
    with raises(hvd.UnsupportedError, "op=Adasum"):
        hvd.DistributedOptimizer(plain, op=hvd.Adasum)
    with raises(hvd.UsageError, "backward_passes_per_step=0"):
        hvd.DistributedOptimizer(plain, backward_passes_per_step=0)
    with raises(hvd.UsageError, "gradient_predivide_factor"):
        hvd.DistributedOptimizer(plain, op=hvd.Sum, gradient_predivide_factor=2.0)
    with raises(hvd.UsageError, "no optimizer of"):
        hvd.DistributedOptimizer(object())


def broadcasting_variables_in_place(hvd: Any, rank: int, size: int) -> None:
    """What is fetched is what was assigned; and it was."""
    for several in (False, True):
        with tf.Graph().as_default():
            a = tf.compat.v1.get_variable("a", initializer=tf.ones([2]) * float(rank), use_resource=True)
            b = tf.compat.v1.get_variable("b", initializer=tf.constant([rank, 7]), use_resource=True)
            values = hvd.broadcast_([a, b] if several else a, root_rank=size - 1, name="in.place")
            with tf.compat.v1.Session() as session:
                session.run(tf.compat.v1.global_variables_initializer())
                before = session.run(a)
                fetched = session.run(values)
                after = session.run([a, b])
        first = fetched[0] if several else fetched
        assert (before == rank).all() and (first == size - 1).all() and (after[0] == size - 1).all()
        assert after[1].tolist() == [size - 1 if several else rank, 7]


def variables_of_the_old_kind(hvd: Any, rank: int, size: int) -> None:
    with tf.Graph().as_default():
        old = tf.compat.v1.get_variable("old", initializer=tf.ones([2]) * float(rank), use_resource=False)
        value = hvd.broadcast_(old, root_rank=0)
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            assert (session.run(value) == 0).all() and (session.run(old) == 0).all()


def gradients_where_ranks_need_different_parts(hvd: Any, rank: int, size: int) -> None:
    """Of a broadcast only the root has a gradient; the others have to take part in computing it all the same."""
    total = float(sum(range(1, size + 1)))
    with tf.Graph().as_default():
        own = tf.ones([2, 3]) * float(rank)
        results = {
            "broadcast": hvd.broadcast(own, size - 1, name="part.b"),
            "allgather": hvd.allgather(own, name="part.g"),
            "alltoall": hvd.alltoall(own[:0], splits=[0] * size, name="part.a")[0],
            "reducescatter": hvd.reducescatter(tf.concat([own] * size, 0), op=hvd.Sum, name="part.r"),
        }
        found = {name: tf.gradients(result * float(rank + 1), own)[0] for name, result in results.items()}
        with tf.compat.v1.Session() as session:
            for name, gradient in found.items():  # one at a time: nothing else makes a rank take part
                found[name] = session.run(gradient)
    assert (found["broadcast"] == (total / size if rank == size - 1 else 0.0)).all(), found["broadcast"]
    assert (found["allgather"] == total / size).all() and (found["alltoall"] == 0.0).all()
    assert (found["reducescatter"] == total * size).all(), found["reducescatter"]
    from hora.tensorflow import graph

    assert not graph._under_way


def many_collectives_in_one_run(hvd: Any, rank: int, size: int) -> None:
    """Independent ones, which ranks may begin in any order, with fewer threads than there are of them."""
    letters = list("abcdefgh")
    for threads in (1, 2):
        config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=threads, use_per_session_threads=True)
        with tf.Graph().as_default():
            order = letters if rank % 2 else letters[::-1]
            x = tf.compat.v1.placeholder(tf.float32, [1])
            found = {name: hvd.allreduce(x, name=f"many.{name}", op=hvd.Sum) * 2.0 for name in order}
            inside = tf.cond(
                x[0] > 0.0, partial(hvd.allreduce, x, name="many.cond", op=hvd.Sum), partial(tf.identity, x)
            )
            with tf.compat.v1.Session(config=config) as session:
                for i in range(1, 4):
                    results, last = session.run([[found[name] for name in letters], inside], {x: [i]})
                    assert [r.tolist() for r in results] == [[2.0 * i * size]] * 8 and last.tolist() == [i * size]
    from hora.tensorflow import graph

    assert not graph._under_way


def opposite_orders_in_a_function_of_a_session(hvd: Any, rank: int, size: int) -> None:
    letters = list("abcd")

    @tf.function
    def step(x: Any) -> Any:
        order = letters if rank % 2 else letters[::-1]
        found = {name: hvd.allreduce(x, name=f"inside.{name}", op=hvd.Sum) for name in order}
        return [found[name] for name in letters]

    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=1, use_per_session_threads=True)
    with tf.Graph().as_default():
        results = step(tf.constant([3.0]))
        with tf.compat.v1.Session(config=config) as session:
            assert [r.tolist() for r in session.run(results)] == [[3.0 * size]] * 4


def failures_in_a_run(hvd: Any, rank: int, size: int) -> None:
    if size == 1:
        return
    with tf.Graph().as_default():
        uneven = hvd.allreduce(tf.ones([rank + 1]), name="uneven.session")
        with tf.compat.v1.Session() as session, raises(tf.errors.OpError, "uneven.session", "MismatchError"):
            session.run(uneven)
    hvd.barrier()


def meeting_and_joining(hvd: Any, rank: int, size: int) -> None:
    """They are operations to run, and bring nothing else with them."""
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, [1])
        hvd.allreduce(x, name="not.asked.for")
        meet, join = hvd.barrier(), hvd.join()
        with tf.compat.v1.Session() as session:
            assert session.run(meet) is None
            assert session.run(join) in range(size)
