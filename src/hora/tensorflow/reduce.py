"""The gradients of one step, reduced over the ranks: what tapes and optimizers have in common.

All dense gradients travel as one group, and all sparse ones as another, begun together: two operations a step at most,
however many variables there are. So no rank can wait for a gradient that another has put behind one of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec
import tensorflow as tf

from hora.engine.backend import UnderWay
from hora.engine.process_set import ProcessSet, global_process_set
from hora.errors import UsageError
from hora.ops import host
from hora.ops.call import Call
from hora.ops.compression import GradientCompressor, has_memory
from hora.ops.gradients import GradientRule
from hora.ops.host import Array
from hora.ops.numbering import name_of_key
from hora.tensorflow import gradients as differentiable
from hora.tensorflow.adapter import dtype_of, plain
from hora.tensorflow.compression import Compression
from hora.tensorflow.graph import carry, traced_name
from hora.tensorflow.slices import Slices
from hora.types import Kind, Reduction

__all__ = ["apply", "reduce_gradients"]


def apply(
    rule: GradientRule, gradients: Sequence[Any], local: Collection[int] = (), name: str | None = None
) -> list[Any]:
    """The gradients to step with, by the rule of a tape or an optimizer."""
    dense = [_dense(gradient) for gradient in gradients] if rule.sparse_as_dense else gradients
    return rule.apply(
        dense, lambda own: reduce_gradients(own, rule.how, name, rule.process_set, rule.compression), _scaled, local
    )


def reduce_gradients(
    gradients: Sequence[Any],
    how: Reduction,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
) -> list[Any]:
    """The gradients, dense or ``tf.IndexedSlices``, combined over the ranks; eagerly or in a graph. None is None.

    Without a name they get a number: that of the first group of such shapes and types, so that a script with several
    models has one name for each, in the order of first use.
    """
    result = [_dense(gradient) for gradient in gradients] if sparse_as_dense else list(gradients)
    dense = [i for i, g in enumerate(result) if g is not None and not isinstance(g, tf.IndexedSlices)]
    sparse = [i for i, g in enumerate(result) if isinstance(g, tf.IndexedSlices)]
    if not dense and not sparse:
        return result
    name = name or _number([result[i] for i in dense], len(sparse), process_set)
    if has_memory(compression):
        return _compressed(result, compression, how, name, process_set)
    packed = [compression.compress(plain(result[i])) for i in dense]
    small = [tensor for tensor, _ in packed]
    for tensor in small:
        dtype_of(tensor)
    parts = Slices([result[i] for i in sparse], compression)
    reduce = Call(Kind.ALLREDUCE, name, process_set, how, grouped=True)
    if not sparse:
        reduced, gathered = differentiable.carry(reduce, small).tensors, []
    elif not dense:
        reduced, gathered = [], differentiable.carry(_gather(reduce), parts.sent).tensors
    else:
        reduced, gathered = _both(small, parts.sent, reduce)
    for i, tensor, (_, context) in zip(dense, reduced, packed, strict=True):
        result[i] = compression.decompress(tensor, context)
    if sparse:
        for i, part in zip(sparse, parts.combined(gathered, how, process_set), strict=True):
            result[i] = part
    return result


def _compressed(
    gradients: list[Any], compression: GradientCompressor, how: Reduction, name: str, process_set: ProcessSet
) -> list[Any]:
    """By a compressor with a memory, which works on arrays on the host; sparse ones become dense."""
    places = [i for i, gradient in enumerate(gradients) if gradient is not None]
    dense = [plain(_dense(gradients[i])) for i in places]
    call = Call(Kind.ALLREDUCE, name, process_set, how, memory=compression)

    def start(arrays: Sequence[Array]) -> UnderWay[list[Array]]:
        return host.start(call, arrays).then(host.flat)

    results = carry(start, dense, [t.dtype for t in dense], [t.shape for t in dense])
    for i, result in zip(places, results, strict=True):
        gradients[i] = result
    return gradients


def _both(dense: Sequence[Any], sent: Sequence[Any], reduce: Call) -> tuple[list[Any], list[Any]]:
    """Dense gradients and the parts of slices in one operation of the graph, which begins both and then waits for both.

    In two, a thread of TensorFlow that waits for one could be missing to begin the other.
    """
    n, name = len(dense), traced_name("grouped_allreduce", reduce.name) or reduce.name
    reduce = msgspec.structs.replace(reduce, name=name)

    def start(arrays: Sequence[Array]) -> UnderWay[list[Array]]:
        reduced, gathered = host.start(reduce, arrays[:n]), host.start(_gather(reduce), arrays[n:])
        return reduced.then(lambda results: [*results.tensors, *gathered.wait().tensors])

    def forward(*tensors: Any) -> tuple[list[Any], Any]:
        shapes = [*(t.shape for t in dense), *(tf.TensorShape([None, *t.shape[1:]]) for t in sent)]
        return carry(start, tensors, [t.dtype for t in tensors], shapes), _no_gradient

    results = list(tf.custom_gradient(forward)(*dense, *sent))
    return results[:n], results[n:]


def _gather(reduce: Call) -> Call:
    """What gathers the slices beside it."""
    return Call(Kind.ALLGATHER, f"{reduce.name}.slices", reduce.process_set, grouped=True)


def _no_gradient(*_: Any) -> Any:
    raise UsageError(
        "the gradient of reduced gradients was asked for, and some of them are tf.IndexedSlices. None is defined for"
        " dense and sparse ones together. Give sparse_as_dense=True, or reduce only the last gradients."
    )


def _number(dense: Sequence[Any], sparse: int, process_set: ProcessSet) -> str:
    shapes = tuple((tensor.dtype.name, str(tensor.shape)) for tensor in dense)
    return name_of_key((shapes, sparse), "gradients", process_set)


def _dense(gradient: Any) -> Any:
    return tf.convert_to_tensor(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient


def _scaled(gradient: Any, factor: float) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * factor
