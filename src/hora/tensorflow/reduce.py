"""The gradients of one step, reduced over the ranks: what tapes and optimizers have in common.

All dense gradients travel as one group, and all sparse ones as another, begun together: two operations a step at most,
however many variables there are. So no rank can wait for a gradient that another has put behind one of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec
import tensorflow as tf

from hora.engine import session
from hora.engine.process_set import ProcessSet, global_process_set
from hora.errors import UsageError
from hora.ops import host
from hora.ops.host import Array
from hora.ops.resolve import Reduction, predivided
from hora.ops.started import Started
from hora.tensorflow import gradients as differentiable
from hora.tensorflow.adapter import dtype_of, plain
from hora.tensorflow.compression import Compression, Compressor
from hora.tensorflow.graph import carry, traced_name
from hora.tensorflow.slices import Slices
from hora.transport.base import ReduceOp

__all__ = ["GradientRule", "reduce_gradients"]


class GradientRule(msgspec.Struct, frozen=True):
    """What a tape or an optimizer was asked to do with gradients.

    >>> GradientRule(predivide_factor=4.0).reduction(ranks=2)[:3]
    (<ReduceOp.SUM: 1>, 0.25, 2.0)
    """

    op: ReduceOp = ReduceOp.AVERAGE
    predivide_factor: float = 1.0
    compression: type[Compressor] = Compression.none
    sparse_as_dense: bool = False
    process_set: ProcessSet = global_process_set
    scale_local: bool = True

    def __post_init__(self) -> None:
        self.reduction(1)  # refuses what cannot be

    def reduction(self, ranks: int) -> Reduction:
        """How ``ranks`` ranks' gradients are combined."""
        return predivided(self.op, self.predivide_factor, ranks)

    def apply(self, gradients: Sequence[Any], local: Collection[int] = (), name: str | None = None) -> list[Any]:
        """The gradients to step with. Those at the places ``local`` stay on their rank; None stays None."""
        members = self.process_set.members
        result = [_dense(gradient) for gradient in gradients] if self.sparse_as_dense else list(gradients)
        if session.engine().rank not in members or len(members) == 1:
            return result
        places = [i for i, gradient in enumerate(result) if gradient is not None]
        if self.scale_local:
            for i in set(places).intersection(local):
                result[i] = _scaled(result[i], 1.0 / len(members))
        travel = [i for i in places if i not in local]
        reduced = reduce_gradients(
            [result[i] for i in travel], self.reduction(len(members)), name, self.process_set, self.compression
        )
        for i, gradient in zip(travel, reduced, strict=True):
            result[i] = gradient
        return result


def reduce_gradients(
    gradients: Sequence[Any],
    how: Reduction,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    compression: type[Compressor] = Compression.none,
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
    packed = [compression.compress(plain(result[i])) for i in dense]
    small = [tensor for tensor, _ in packed]
    for tensor in small:
        dtype_of(tensor)
    parts = Slices([result[i] for i in sparse], compression)
    if not sparse:
        reduced, gathered = differentiable.allreduce(small, how, name, process_set, grouped=True), []
    elif not dense:
        reduced, gathered = [], differentiable.allgather(parts.sent, f"{name}.slices", process_set, grouped=True)
    else:
        reduced, gathered = _both(small, parts.sent, how, name, process_set)
    for i, tensor, (_, context) in zip(dense, reduced, packed, strict=True):
        result[i] = compression.decompress(tensor, context)
    if sparse:
        for i, part in zip(sparse, parts.combined(gathered, how, process_set), strict=True):
            result[i] = part
    return result


def _both(
    dense: Sequence[Any], sent: Sequence[Any], how: Reduction, name: str, process_set: ProcessSet
) -> tuple[list[Any], list[Any]]:
    """Dense gradients and the parts of slices in one operation of the graph, which begins both and then waits for both.

    In two, a thread of TensorFlow that waits for one could be missing to begin the other.
    """
    n = len(dense)
    kind = "grouped_allreduce"
    name = traced_name(kind, name) or name

    def start(arrays: Sequence[Array]) -> Started[list[Array]]:
        reduced = host.allreduce(arrays[:n], how, name, process_set, grouped=True)
        gathered = host.allgather(arrays[n:], f"{name}.slices", process_set, grouped=True)
        return reduced.then(lambda arrays: [*arrays, *(part.array for part in gathered.result())])

    def forward(*tensors: Any) -> tuple[list[Any], Any]:
        shapes = [*(t.shape for t in dense), *(tf.TensorShape([None, *t.shape[1:]]) for t in sent)]
        return carry(start, tensors, [t.dtype for t in tensors], shapes), _no_gradient

    results = list(tf.custom_gradient(forward)(*dense, *sent))
    return results[:n], results[n:]


def _no_gradient(*_: Any) -> Any:
    raise UsageError(
        "the gradient of reduced gradients was asked for, and some of them are tf.IndexedSlices. None is defined for"
        " dense and sparse ones together. Give sparse_as_dense=True, or reduce only the last gradients."
    )


def _number(dense: Sequence[Any], sparse: int, process_set: ProcessSet) -> str:
    shapes = tuple((tensor.dtype.name, str(tensor.shape)) for tensor in dense)
    known: dict[Any, str] = session.engine().repeated.setdefault(("tensorflow.gradients", process_set.members), {})
    return known.setdefault((shapes, sparse), f"gradients.{len(known)}")


def _dense(gradient: Any) -> Any:
    return tf.convert_to_tensor(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient


def _scaled(gradient: Any, factor: float) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * factor
