"""Whole objects at once: a model's variables, any Python object.

Promises: after a broadcast every rank's variables have the root's values. All variables travel as one group, so ranks
that have different ones are told so. Objects are ``ops.objects``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from hora.engine import session
from hora.engine.backend import UnderWay
from hora.engine.process_set import ProcessSet, global_process_set
from hora.errors import UnsupportedError, UsageError
from hora.ops import host
from hora.ops.call import Call, Results
from hora.ops.host import Array
from hora.ops.objects import allgather_object, broadcast_object
from hora.tensorflow.graph import carry, in_session, traced_name
from hora.tensorflow.surface import plainly
from hora.types import Kind

__all__ = [
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
]


@plainly
def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
    name: str | None = None,
) -> Any:
    """Give every rank's variables the root's values.

    Args:
        variables: ``model.variables``, ``optimizer.variables`` or any list, in the same order on all ranks.
        root_rank: The rank to copy from: its rank among all, also within a process set.
        process_set: The ranks that take part; all of them unless given.
        inplace: Taken for Horovod's sake.
        name: What the operation is called; every rank must use the same.

    Returns: None; in a graph for sessions, the operation that does it.

    >>> import hora.tensorflow as hvd
    >>> hvd.init()
    >>> weight = tf.Variable([1.0, 2.0])
    >>> hvd.broadcast_variables([weight], root_rank=0)
    >>> weight.numpy().tolist()
    [1.0, 2.0]
    >>> hvd.shutdown()
    """
    given = list(variables)
    if not given:
        return tf.no_op() if in_session() else None
    return assign_from_root(given, root_rank, name or "variables", process_set)


@plainly
def broadcast_global_variables(root_rank: int) -> Any:
    """The operation that gives all global variables of a graph the root's values: for sessions of ``tf.compat.v1``.

    Args:
        root_rank: The rank to copy from.
    """
    if not in_session():
        raise UnsupportedError(
            "broadcast_global_variables without a session. TensorFlow keeps a list of all variables only for those."
            " Use broadcast_variables(model.variables, root_rank=0)."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank, name="global_variables")


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """A function that broadcasts the object it is given: ``broadcast_object`` with all but the object filled in.

    Args:
        root_rank: The rank to copy from: its rank among all, also within a process set.
        session: Taken for Horovod's sake: objects do not travel through the graph.
        name: What the operation is called; every rank must use the same.
        process_set: The ranks that take part; all of them unless given.
    """
    return lambda obj: broadcast_object(obj, root_rank, name, process_set)


def own_variable(variable: Any) -> Any:
    """TensorFlow's variable, also of one of Keras's, which has it inside."""
    value = getattr(variable, "value", None)
    inner = variable if value is None or callable(value) else value
    if not isinstance(inner, tf.Variable):
        raise UsageError(
            f"a {type(variable).__name__} was given where a tf.Variable is needed: it will be assigned to. Give"
            " model.variables, or use broadcast for a tensor."
        )
    return inner


def assign_from_root(variables: Sequence[Any], root_rank: int, name: str | None, process_set: ProcessSet) -> Any:
    """Broadcast all of them as one group and assign; in a graph for sessions, returns the operation."""
    own = [own_variable(variable) for variable in variables]
    values = [variable.read_value() for variable in own]
    call = Call(Kind.BROADCAST, traced_name("broadcast", name), process_set, root=root_rank)

    def start(arrays: Sequence[Array]) -> UnderWay[list[Array]]:
        like = [(array.dtype, array.shape) for array in arrays]

        def with_types(results: Results[Array]) -> list[Array]:
            pairs = zip(results.tensors, like, strict=True)
            return [result.view(dtype).reshape(shape) for result, (dtype, shape) in pairs]

        return host.start(call, [_as_bits(array) for array in arrays]).then(with_types)

    results = carry(start, values, [value.dtype for value in values], [value.shape for value in values])
    if tf.executing_eagerly() and session.engine().rank == root_rank:
        return None
    assigned = [v.assign(result, read_value=False) for v, result in zip(own, results, strict=True)]
    return tf.group(*assigned) if in_session() else None


def _as_bits(array: Array) -> Array:
    """The same memory under a type that can be carried: only bytes are moved."""
    if array.dtype.kind in "cu" and array.itemsize > 1:
        return array.reshape(-1).view(f"int{8 * min(array.itemsize, 8)}")
    return array
