"""Gradients of the collectives, as ``ops.table`` states them; ``torch.autograd`` has the same and says what is exact.

Each function here takes lists of tensors, carries the collective out and tells TensorFlow its gradient, eagerly or in a
graph. The gradient's operation is named after the forward one (``allreduce.loss.grad``), so ranks pair them whatever
order their backward passes take. It is itself differentiable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hora.engine.backend import UnderWay
from hora.engine.process_set import ProcessSet
from hora.errors import UsageError
from hora.ops import host
from hora.ops.host import Array, GatheredRows
from hora.tensorflow.compat import could_possibly_record
from hora.tensorflow.graph import Start, carry, traced_name
from hora.types import ReduceOp, Reduction

__all__ = ["allgather", "allreduce", "alltoall", "broadcast", "reducescatter"]

_SMOOTH = (ReduceOp.AVERAGE, ReduceOp.SUM, ReduceOp.ADASUM)


class _Named:
    """A way to begin a collective that remembers the name it was given, for the gradient to be called after it."""

    def __init__(self, kind: str, name: str | None, start: Start) -> None:
        self._start, self.name = start, f"{kind}.{name}"

    def __call__(self, arrays: Sequence[Array]) -> UnderWay[list[Array]]:
        started = self._start(arrays)
        self.name = started.request.name
        return started


def allreduce(
    tensors: Sequence[Any], how: Reduction, name: str | None, process_set: ProcessSet, *, grouped: bool = False
) -> list[Any]:
    kind = "grouped_allreduce" if grouped else "allreduce"
    name = traced_name(kind, name)
    start = _Named(kind, name, lambda arrays: host.allreduce(arrays, how, name, process_set, grouped=grouped))

    def backward(grads: list[Any]) -> list[Any]:
        if how.op not in _SMOOTH:
            raise UsageError(
                f"the gradient of allreduce with op={how.op.name.capitalize()} was asked for. None is defined. Use"
                " tf.stop_gradient on its result, or op=Sum or op=Average."
            )
        return allreduce(grads, how, f"{start.name}.grad", process_set, grouped=grouped)

    def forward(inputs: Sequence[Any]) -> list[Any]:
        return carry(start, inputs, [t.dtype for t in inputs], [t.shape for t in inputs])

    return _with_gradient(tensors, forward, backward)


def broadcast(tensor: Any, root: int, name: str | None, process_set: ProcessSet) -> Any:
    name = traced_name("broadcast", name)
    start = _Named("broadcast", name, lambda arrays: host.broadcast(arrays, root, name, process_set))

    def backward(grads: list[Any]) -> list[Any]:
        averaged = allreduce(grads, Reduction(ReduceOp.AVERAGE), f"{start.name}.grad", process_set)
        if process_set.members[process_set.rank()] == root:
            return averaged
        with tf.control_dependencies(averaged):  # a session runs what is asked for, and the root waits for this rank
            return [tf.zeros_like(grads[0])]

    def forward(inputs: Sequence[Any]) -> list[Any]:
        return carry(start, inputs, [tensor.dtype], [tensor.shape])

    return _with_gradient([tensor], forward, backward)[0]


def allgather(tensors: Sequence[Any], name: str | None, process_set: ProcessSet, *, grouped: bool = False) -> list[Any]:
    kind = "grouped_allgather" if grouped else "allgather"
    name = traced_name(kind, name)

    def begin(arrays: Sequence[Array]) -> UnderWay[list[Array]]:
        return host.allgather(arrays, name, process_set, grouped=grouped).then(_with_rows)

    start = _Named(kind, name, begin)
    own: list[Any] = []

    def forward(inputs: Sequence[Any]) -> list[Any]:
        n = len(inputs)
        dtypes = [*(t.dtype for t in inputs), *[tf.int32] * n]
        shapes = [*(_any_rows(t.shape) for t in inputs), *[[process_set.size()]] * n]
        results = carry(start, inputs, dtypes, shapes)
        own[:] = results[n:]
        return results[:n]

    def backward(grads: list[Any]) -> list[Any]:
        # Only floating-point tensors have gradients; the rows of others in the group are not needed.
        mine = process_set.rank()
        rows = [r for r, t in zip(own, tensors, strict=True) if t.dtype.is_floating]
        averaged = allreduce(grads, Reduction(ReduceOp.AVERAGE), f"{start.name}.grad", process_set, grouped=grouped)
        starts = [tf.reduce_sum(r[:mine]) for r in rows]
        return [g[s : s + r[mine]] for g, r, s in zip(averaged, rows, starts, strict=True)]

    return _with_gradient(tensors, forward, backward)


def alltoall(tensor: Any, splits: Any, name: str | None, process_set: ProcessSet) -> tuple[Any, Any]:
    """The rows received, and how many came from each rank; ``splits`` is None or an integer tensor."""
    name = traced_name("alltoall", name)

    def begin(arrays: Sequence[Array]) -> UnderWay[list[Array]]:
        numbers = arrays[1].tolist() if len(arrays) > 1 else None
        started = host.alltoall(arrays[0], numbers, name, process_set)
        return started.then(lambda gathered: _with_rows([gathered]))

    start = _Named("alltoall", name, begin)
    rows: list[Any] = []

    def forward(inputs: Sequence[Any]) -> list[Any]:
        given = list(inputs) if splits is None else [*inputs, splits]
        shapes = [_any_rows(tensor.shape), [process_set.size()]]
        received, counts = carry(start, given, [tensor.dtype, tf.int32], shapes)
        rows[:] = [counts]
        return [received]

    def backward(grads: list[Any]) -> list[Any]:
        sent_back, _ = alltoall(grads[0], rows[0], f"{start.name}.grad", process_set)
        # Rows beyond the splits went nowhere: their gradient is zero.
        shape = tf.shape(tensor)
        stayed = tf.concat([[shape[0] - tf.shape(sent_back)[0]], shape[1:]], 0)
        return [tf.concat([sent_back, tf.zeros(stayed, sent_back.dtype)], 0)]

    (received,) = _with_gradient([tensor], forward, backward)
    return received, rows[0]


def reducescatter(
    tensors: Sequence[Any], how: Reduction, name: str | None, process_set: ProcessSet, *, grouped: bool = False
) -> list[Any]:
    kind = "grouped_reducescatter" if grouped else "reducescatter"
    name = traced_name(kind, name)
    start = _Named(kind, name, lambda arrays: host.reducescatter(arrays, how, name, process_set, grouped=grouped))

    def backward(grads: list[Any]) -> list[Any]:
        factor = how.prescale * how.postscale * (process_set.size() if how.op is ReduceOp.SUM else 1)
        scaled = [grad * tf.cast(factor, grad.dtype) for grad in grads] if factor != 1 else grads
        return allgather(scaled, f"{start.name}.grad", process_set, grouped=grouped)

    def forward(inputs: Sequence[Any]) -> list[Any]:
        return carry(start, inputs, [t.dtype for t in inputs], [_any_rows(t.shape) for t in inputs])

    return _with_gradient(tensors, forward, backward)


def _with_gradient(
    tensors: Sequence[Any],
    forward: Callable[[Sequence[Any]], list[Any]],
    backward: Callable[[list[Any]], list[Any]],
) -> list[Any]:
    """Carry it out; ``backward`` gets the gradients of the floating-point tensors only, all of them, dense."""
    floating = [i for i, tensor in enumerate(tensors) if tensor.dtype.is_floating]
    if not floating or (tf.executing_eagerly() and not could_possibly_record()):
        return forward(tensors)

    def differentiable(*inputs: Any) -> tuple[list[Any], Callable[..., list[Any]]]:
        results = forward(inputs)

        def gradient(*grads: Any) -> list[Any]:
            dense = [_dense(grads[i], results[i]) for i in floating]
            found: list[Any] = [None] * len(tensors)
            for i, grad in zip(floating, backward(dense), strict=True):
                found[i] = grad
            return found

        return results, gradient

    return list(tf.custom_gradient(differentiable)(*tensors))


def _dense(grad: Any, result: Any) -> Any:
    """Of a result that nobody used TensorFlow gives None or zeros of another type; of one that was indexed, slices."""
    if grad is None:
        return tf.zeros_like(result)
    return tf.cast(tf.convert_to_tensor(grad), result.dtype)


def _with_rows(gathered: Sequence[GatheredRows[Array]]) -> list[Array]:
    """All arrays, then how many rows came from each rank, for each of them."""
    return [*(g.tensor for g in gathered), *(np.array(g.rows, np.int32) for g in gathered)]


def _any_rows(shape: Any) -> Any:
    return shape if shape.rank is None else tf.TensorShape([None, *shape[1:]])
