"""The collectives of ``hora.tensorflow``: Horovod's functions, eagerly and inside ``tf.function``.

What they mean, what they take and what their gradients are is written in ``ops.table``, from which the docstrings are
filled. All of them are differentiable where the table states a gradient. Those that TensorFlow's users do not have
(``*_async``, in-place forms of tensors, which TensorFlow never overwrites) are not here; ``broadcast_`` works on
variables.

Arguments that are taken for Horovod's sake: ``device_dense`` and ``device_sparse`` (results are where the tensors are)
and ``ignore_name_scope`` (names never depend on a scope).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hora.engine import session
from hora.engine.process_set import ProcessSet, global_process_set
from hora.errors import UsageError
from hora.ops.resolve import check_rows, reduction
from hora.ops.table import FUNCTIONS
from hora.tensorflow import gradients
from hora.tensorflow.adapter import dtype_of, plain
from hora.tensorflow.compression import Compression, Compressor
from hora.tensorflow.graph import after_all, in_session, now
from hora.tensorflow.slices import Slices, check_slices
from hora.tensorflow.surface import plainly, public
from hora.transport.base import ReduceOp

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "size_op",
]

Average, Sum, Adasum = ReduceOp.AVERAGE, ReduceOp.SUM, ReduceOp.ADASUM
Min, Max, Product = ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT

_ALLREDUCE = FUNCTIONS["allreduce"][0]
_REDUCESCATTER = FUNCTIONS["reducescatter"][0]


@public
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """
    ``tf.IndexedSlices`` may be given, for Sum and Average: the slices of all ranks are gathered and stay slices.
    """
    (result,) = _allreduce(
        [tensor], average, compression, op, prescale_factor, postscale_factor, name, process_set, grouped=False
    )
    return result


@public
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """
    ``tf.IndexedSlices`` may be among them, for Sum and Average; they are gathered, as a group of their own.
    """
    return _allreduce(
        tensors, average, compression, op, prescale_factor, postscale_factor, name, process_set, grouped=True
    )


def _allreduce(
    tensors: Sequence[Any],
    average: bool | None,
    compression: type[Compressor],
    op: ReduceOp | None,
    prescale: float,
    postscale: float,
    name: str | None,
    process_set: ProcessSet,
    *,
    grouped: bool,
) -> list[Any]:
    _check_given(tensors, "grouped_allreduce")
    sparse = {i: tensor for i, tensor in enumerate(tensors) if isinstance(tensor, tf.IndexedSlices)}
    packed = [compression.compress(plain(tensor)) for i, tensor in enumerate(tensors) if i not in sparse]
    if sparse:  # before anything is said about types
        check_slices(reduction(_ALLREDUCE, [], op, average, prescale, postscale))
    types = [dtype_of(plain(slices.values)) for slices in sparse.values()]
    types += [dtype_of(small) for small, _ in packed]
    how = reduction(_ALLREDUCE, types, op, average, prescale, postscale)
    results: dict[int, Any] = {}
    if packed:
        reduced = gradients.allreduce([small for small, _ in packed], how, name, process_set, grouped=grouped)
        dense = (compression.decompress(small, context) for small, (_, context) in zip(reduced, packed, strict=True))
        results = dict(zip([i for i in range(len(tensors)) if i not in sparse], dense, strict=True))
    if sparse:
        parts = Slices(list(sparse.values()), compression)
        gathered = gradients.allgather(parts.sent, name and f"{name}.slices", process_set, grouped=True)
        results.update(zip(sparse, parts.combined(gathered, how, process_set), strict=True))
    return [results[i] for i in range(len(tensors))]


@public
def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    return gradients.allgather(_with_rows([tensor], "allgather"), name, process_set)[0]


@public
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    return gradients.allgather(_with_rows(tensors, "allgather"), name, process_set, grouped=True)


@public
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    tensor = plain(tensor)
    dtype_of(tensor)
    return gradients.broadcast(tensor, root_rank, name, process_set)


@public
def broadcast_(
    variables: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """
    ``variables`` is a variable or a list of variables, which are broadcast together. Returns their new values.
    """
    from hora.tensorflow.functions import assign_from_root, own_variable

    several = isinstance(variables, (list, tuple))
    given = [own_variable(variable) for variable in (variables if several else [variables])]
    _check_given(given, "broadcast_")
    assigned = assign_from_root(given, root_rank, name, process_set)
    with tf.control_dependencies([] if assigned is None else [assigned]):  # a session runs only what is asked for
        values = [variable.read_value() for variable in given]
    return values if several else values[0]


@public
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    (tensor,) = _with_rows([tensor], "alltoall")
    if splits is None:
        return gradients.alltoall(tensor, None, name, process_set)[0]
    splits = plain(splits)
    if not splits.dtype.is_integer or splits.shape.rank not in (None, 1):
        raise UsageError(
            f"alltoall: splits has the type {splits.dtype.name} and the shape {splits.shape}. Split i says how many"
            " rows rank i gets. Give a list of integers, or a 1-d integer tensor."
        )
    return gradients.alltoall(tensor, splits, name, process_set)


@public
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    return _reducescatter([tensor], compression, op, name, process_set, prescale_factor, postscale_factor, False)[0]


@public
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
) -> list[Any]:
    return _reducescatter(tensors, compression, op, name, process_set, prescale_factor, postscale_factor, True)


def _reducescatter(
    tensors: Sequence[Any],
    compression: type[Compressor],
    op: ReduceOp | None,
    name: str | None,
    process_set: ProcessSet,
    prescale: float,
    postscale: float,
    grouped: bool,
) -> list[Any]:
    packed = [compression.compress(tensor) for tensor in _with_rows(tensors, "reducescatter")]
    small = [tensor for tensor, _ in packed]
    how = reduction(_REDUCESCATTER, [dtype_of(tensor) for tensor in small], op, None, prescale, postscale)
    results = gradients.reducescatter(small, how, name, process_set, grouped=grouped)
    return [compression.decompress(result, context) for result, (_, context) in zip(results, packed, strict=True)]


@public
def barrier(process_set: ProcessSet = global_process_set) -> Any:
    """
    Returns None; in a graph for sessions, the operation to run.
    """

    def meet() -> int:
        session.engine().barrier(process_set)
        return 0

    met = after_all(meet)
    return met.op if in_session() else None


@public
def join(device: int = -1, average_active: bool = False) -> Any:
    """
    Returns an integer; inside a ``tf.function``, a tensor.
    """
    if tf.executing_eagerly():
        return session.engine().join(average_active)
    return after_all(lambda: session.engine().join(average_active))


# --- who and where, as operations -------------------------------------------------------------------------------------


@plainly
def rank_op(name: str | None = None) -> Any:
    """This process's rank, found when the operation is executed, not when it is traced: an int32 tensor.

    >>> import hora.tensorflow as hvd
    >>> hvd.init()
    >>> int(hvd.rank_op()), int(hvd.size_op())      # alone, unless a launcher started several
    (0, 1)
    >>> hvd.shutdown()
    """
    return now(session.rank)


@plainly
def local_rank_op(name: str | None = None) -> Any:
    """This process's rank among those of its host, found when executed."""
    return now(session.local_rank)


@plainly
def local_size_op(name: str | None = None) -> Any:
    """How many workers this host has, found when executed."""
    return now(session.local_size)


@plainly
def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """How many ranks there are, or are in the process set of this number, found when executed."""
    return now(lambda: len(_members(process_set_id)))


@plainly
def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """1 if this process is in the process set of this number, else 0; found when executed."""
    return now(lambda: int(session.rank() in _members(process_set_id)))


def _members(process_set_id: int) -> list[int]:
    known = session.engine().process_sets.ids()
    if process_set_id not in known:
        raise UsageError(
            f"there is no process set of the number {process_set_id}; known are {sorted(known)}. Give the"
            " process_set_id of one that was added and not removed."
        )
    return known[process_set_id]


# --- what was given ---------------------------------------------------------------------------------------------------


def _check_given(tensors: Sequence[Any], function: str) -> None:
    if not len(tensors):
        raise UsageError(
            f"{function} of an empty list. There is nothing that the ranks could agree on. Leave the call"
            " out, on all ranks, where there are no tensors."
        )


def _with_rows(tensors: Sequence[Any], function: str) -> list[Any]:
    """The tensors, where rows matter; in a graph their number of dimensions may not be known yet."""
    _check_given(tensors, f"grouped_{function}")
    given = [plain(tensor) for tensor in tensors]
    for tensor in given:
        dtype_of(tensor)
        if tensor.shape.rank is not None:
            check_rows(function, [0] * tensor.shape.rank)
    return given
