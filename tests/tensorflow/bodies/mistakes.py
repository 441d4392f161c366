"""What goes wrong says so, by exceptions that are Hora's and TensorFlow's; and the examples in the documentation."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from typing import Any

import tensorflow as tf
from tests.tensorflow.data import raises


def mismatches(hvd: Any, rank: int, size: int) -> None:
    if size == 1:
        return
    for kind in (hvd.MismatchError, tf.errors.FailedPreconditionError):
        with raises(kind, "uneven", "mistakes.py"):
            hvd.allreduce(tf.ones([rank + 1]), name="uneven")
    step = tf.function(lambda: hvd.allreduce(tf.ones([rank + 1]), name="uneven in a graph"))
    with raises(tf.errors.OpError, "uneven in a graph", "MismatchError", "mistakes.py"):
        step()
    with raises(hvd.MismatchError, "gradients."):
        with tf.GradientTape() as tape:
            weight = tf.Variable(tf.ones([rank + 1]))
            loss = tf.reduce_sum(weight)
        hvd.DistributedGradientTape(tape).gradient(loss, [weight])
    hvd.barrier()


def wrong_arguments(hvd: Any, rank: int, size: int) -> None:
    both = (hvd.UsageError, ValueError, tf.errors.InvalidArgumentError)
    for kind in both:
        with raises(kind, f"root_rank={size}"):
            hvd.broadcast(tf.ones([2]), root_rank=size)
        with raises(kind, "complex64", "tf.math.real"):
            hvd.allreduce(tf.zeros([2], tf.complex64))
        with raises(kind, "string", "broadcast_object"):
            hvd.broadcast(tf.constant(["a"]), 0)
        with raises(kind, "0-d"):
            hvd.allgather(tf.constant(1.0))
        with raises(kind, "average=True"):
            hvd.allreduce(tf.ones([2]), average=True, op=hvd.Sum)
        with raises(kind, "empty list"):
            hvd.grouped_allreduce([])
        with raises(kind, "splits"):
            hvd.alltoall(tf.ones([2]), splits=[1.0])
        with raises(kind, "adds up to"):
            hvd.alltoall(tf.ones([1]), splits=[2] * size)
        with raises(kind, "tf.Tensor is needed"):
            hvd.allreduce(object())
        with raises(kind, "uint64"):
            hvd.allreduce(tf.zeros([2], tf.uint64))
    for kind in (*both, hvd.UnsupportedError, NotImplementedError):
        with raises(kind, "op=Max"):
            hvd.reducescatter(tf.ones([2]), op=hvd.Max)
        with raises(kind, "op=Min"):
            hvd.allreduce(tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0])), op=hvd.Min)
        with raises(kind, "op=Adasum"):  # whatever else there may be to say about them
            slices = tf.IndexedSlices([tf.constant(1)], tf.constant([0]))
            hvd.grouped_allreduce([slices, tf.constant([1])], op=hvd.Adasum)
    with raises(tf.errors.InvalidArgumentError, f"root_rank={size}"):
        tf.function(lambda: hvd.broadcast(tf.ones([2]), root_rank=size))()


def what_is_not_initialised(hvd: Any, rank: int, size: int) -> None:
    hvd.shutdown()
    for kind in (hvd.NotInitializedError, hvd.HorovodInternalError, tf.errors.FailedPreconditionError):
        with raises(kind, "init"):
            hvd.allreduce(tf.ones([2]))
    hvd.init()


def outsiders(hvd: Any, rank: int, size: int) -> None:
    if size == 1:
        return
    first = hvd.add_process_set([0])
    if rank:
        for kind in (hvd.NotMemberError, tf.errors.InvalidArgumentError):
            with raises(kind, "included()"):
                hvd.allreduce(tf.ones([2]), process_set=first)
        with tf.GradientTape() as tape:
            weight = tf.Variable(2.0)
            loss = weight * weight
        assert float(hvd.DistributedGradientTape(tape, process_set=first).gradient(loss, weight)) == 4.0
    hvd.remove_process_set(first)


def a_deadlock_is_found(hvd: Any, rank: int, size: int) -> None:
    """Blocking calls in opposite orders, eagerly: nobody can go on, and everybody is told."""
    if size == 1:
        return
    try:
        for name in ("one", "two") if rank else ("two", "one"):
            hvd.allreduce(tf.ones([1]), name=name)
    except hvd.DeadlockError as error:
        assert isinstance(error, tf.errors.UnknownError)
    else:
        raise AssertionError("no deadlock was found")
    hvd.barrier()


def the_documentations_examples(hvd: Any, rank: int, size: int) -> None:
    """Doctests of all modules, which the test process cannot run without TensorFlow."""
    if size > 1:
        return
    hvd.shutdown()
    import hora.tensorflow

    names = [module.name for module in pkgutil.iter_modules(hora.tensorflow.__path__, "hora.tensorflow.")]
    results = {
        name: doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
        for name in ["hora.tensorflow", *names]
        if not name.endswith(".keras")
    }
    assert not [name for name, result in results.items() if result.failed]
    assert sum(result.attempted for result in results.values()) > 30
