"""Gradients of the collectives in TensorFlow, by ``ops.backward``, eagerly or in a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import tensorflow as tf

from hora.engine.backend import UnderWay
from hora.ops import host
from hora.ops.backward import Gradients
from hora.ops.call import Call, Results
from hora.ops.host import Array
from hora.tensorflow import graph
from hora.tensorflow.compat import could_possibly_record
from hora.types import Rows

__all__ = ["carry"]


def carry(call: Call, tensors: Sequence[Any]) -> Results[Any]:
    """Carry it out, and tell TensorFlow its gradient. ``call.splits`` are a tensor, or None."""
    kind = f"grouped_{call.function}" if call.grouped else call.function
    start = _Named(kind, msgspec.structs.replace(call, name=graph.traced_name(kind, call.name)))
    n, splits = len(tensors), [] if call.splits is None else [call.splits]
    rows: list[Any] = []

    def forward(inputs: Sequence[Any]) -> list[Any]:
        dtypes, shapes = [t.dtype for t in inputs], [t.shape for t in inputs]
        if call.kind.rows is not Rows.WHOLE:
            shapes = [tf.TensorShape([None, *shape[1:]]) if shape.rank is not None else shape for shape in shapes]
        if call.kind.gathers:
            dtypes, shapes = [*dtypes, *[tf.int32] * n], [*shapes, *[[call.process_set.size()]] * n]
        results = graph.carry(start, [*inputs, *splits], dtypes, shapes)
        rows[:] = results[n:]
        return results[:n]

    def backward(grads: list[Any], places: list[int]) -> list[Any]:
        given, came = [tensors[i] for i in places], [rows[i] for i in places] if rows else []
        return _GRADIENTS.of(call, f"{start.name}.grad", grads, given, came)

    return Results(_with_gradient(tensors, forward, backward), rows)


class _Named:
    """A way to begin a collective that remembers the name it was given, for the gradient to be called after it."""

    def __init__(self, kind: str, call: Call) -> None:
        self._call, self.name = call, f"{kind}.{call.name}"

    def __call__(self, arrays: Sequence[Array]) -> UnderWay[list[Array]]:
        call = self._call
        if call.splits is not None:
            *arrays, splits = arrays
            call = msgspec.structs.replace(call, splits=splits.tolist())
        started = host.start(call, arrays)
        self.name = started.request.name
        return started.then(host.flat)


class _Gradients(Gradients[Any]):
    """``given`` are the tensors."""

    advice = "Use tf.stop_gradient on its result"

    def carry(self, call: Call, grads: list[Any]) -> Results[Any]:
        return carry(call, grads)

    def scaled(self, grad: Any, factor: float) -> Any:
        return grad * tf.cast(factor, grad.dtype)

    def zeros(self, like: Any) -> Any:
        with tf.control_dependencies([like]):  # a session runs what is asked for, and the root waits for this rank
            return tf.zeros_like(like)

    def own_rows(self, grad: Any, rows: Any, mine: int, given: Any) -> Any:
        start = tf.reduce_sum(rows[:mine])
        return grad[start : start + rows[mine]]

    def returned(self, grad: Any, given: Any) -> Any:
        shape = tf.shape(given)
        missing = tf.concat([[shape[0] - tf.shape(grad)[0]], shape[1:]], 0)
        return tf.concat([grad, tf.zeros(missing, grad.dtype)], 0)


_GRADIENTS = _Gradients()


def _with_gradient(
    tensors: Sequence[Any],
    forward: Callable[[Sequence[Any]], list[Any]],
    backward: Callable[[list[Any], list[int]], list[Any]],
) -> list[Any]:
    """Carry it out; ``backward`` gets the gradients of the floating-point tensors only, all of them, dense, and their
    places."""
    floating = [i for i, tensor in enumerate(tensors) if tensor.dtype.is_floating]
    if not floating or (tf.executing_eagerly() and not could_possibly_record()):
        return forward(tensors)

    def differentiable(*inputs: Any) -> tuple[list[Any], Callable[..., list[Any]]]:
        results = forward(inputs)

        def gradient(*grads: Any) -> list[Any]:
            dense = [_dense(grads[i], results[i]) for i in floating]
            found: list[Any] = [None] * len(tensors)
            for i, grad in zip(floating, backward(dense, floating), strict=True):
                found[i] = grad
            return found

        return results, gradient

    return list(tf.custom_gradient(differentiable)(*tensors))


def _dense(grad: Any, result: Any) -> Any:
    """Of a result that nobody used TensorFlow gives None or zeros of another type; of one that was indexed, slices."""
    if grad is None:
        return tf.zeros_like(result)
    return tf.cast(tf.convert_to_tensor(grad), result.dtype)
