"""What the functions of ``hora.tensorflow`` do with TensorFlow's tensors, eagerly and inside ``tf.function``.

All of them are differentiable where the table states a gradient. Those that TensorFlow's users do not have
(``*_async``, in-place forms of tensors, which TensorFlow never overwrites) are not there; ``broadcast_`` works on
variables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hora.engine import session
from hora.engine.process_set import ProcessSet
from hora.errors import UsageError
from hora.ops.call import Call, Results
from hora.ops.forms import Forms
from hora.ops.resolve import check_rows, reduction
from hora.ops.table import Collective, Form
from hora.tensorflow import gradients
from hora.tensorflow.adapter import dtype_of, plain
from hora.tensorflow.graph import after_all, in_session
from hora.tensorflow.slices import Slices, check_slices
from hora.types import DType, Kind

__all__ = ["TensorFlowForms"]


class TensorFlowForms(Forms[Any]):
    def given(self, tensor: Any) -> Any:
        return plain(tensor)

    def dtype_of(self, tensor: Any) -> DType:
        return dtype_of(tensor)

    def carry(self, call: Call, tensors: list[Any], in_place: bool) -> Results[Any]:
        _check(call, tensors)
        return gradients.carry(call, tensors)

    def splits(self, splits: Any) -> Any:
        """A tensor: in a graph its numbers are not known yet."""
        splits = plain(splits)
        if not splits.dtype.is_integer or splits.shape.rank not in (None, 1):
            raise UsageError(
                f"alltoall: splits has the type {splits.dtype.name} and the shape {splits.shape}. Split i says how many"
                " rows rank i gets. Give a list of integers, or a 1-d integer tensor."
            )
        return splits

    def run(self, collective: Collective, form: Form, given: Sequence[Any], **said: Any) -> Any:
        """In place are variables; ``tf.IndexedSlices`` are gathered, as a group of their own."""
        if form.in_place:
            return _assign_from_root(given[0], said["root_rank"], said["name"], said["process_set"])
        sparse = {i: tensor for i, tensor in enumerate(given) if isinstance(tensor, tf.IndexedSlices)}
        if not sparse or collective.kind is not Kind.ALLREDUCE:
            return super().run(collective, form, given, **said)
        how = said["op"], said["average"], said["prescale_factor"], said["postscale_factor"]
        name, process_set = said["name"], said["process_set"]
        check_slices(reduction(collective, [], *how))  # before anything is said about types
        types = [dtype_of(plain(slices.values)) for slices in sparse.values()]
        dense = [i for i in range(len(given)) if i not in sparse]
        parts = Slices(list(sparse.values()), said["compression"])
        results: list[Any] = [None] * len(given)
        if dense:
            made = super().run(collective, Form.GROUPED, [given[i] for i in dense], **said)
            for i, result in zip(dense, made, strict=True):
                results[i] = result
        call = Call(Kind.ALLGATHER, name and f"{name}.slices", process_set, grouped=True)
        gathered = gradients.carry(call, parts.sent).tensors
        combined = parts.combined(gathered, reduction(collective, types, *how), process_set)
        for i, part in zip(sparse, combined, strict=True):
            results[i] = part
        return results if form.grouped else results[0]

    def barrier(self, form: Form, *, process_set: ProcessSet) -> Any:
        def meet() -> int:
            session.engine().barrier(process_set)
            return 0

        met = after_all(meet)
        return met.op if in_session() else None

    def join(self, form: Form, *, device: int, average_active: bool) -> Any:
        if tf.executing_eagerly():
            return session.engine().join(average_active)
        return after_all(lambda: session.engine().join(average_active))


def _assign_from_root(variables: Any, root_rank: int, name: str | None, process_set: ProcessSet) -> Any:
    """Give variables the root's values; one or a list of them, and so is what is returned."""
    from hora.tensorflow.functions import assign_from_root, own_variable

    several = isinstance(variables, (list, tuple))
    given = [own_variable(variable) for variable in (variables if several else [variables])]
    _refuse_none(given, "broadcast_")
    assigned = assign_from_root(given, root_rank, name, process_set)
    with tf.control_dependencies([] if assigned is None else [assigned]):  # a session runs only what is asked for
        values = [variable.read_value() for variable in given]
    return values if several else values[0]


def _check(call: Call, tensors: Sequence[Any]) -> None:
    """Refuse here what would only be refused when a graph runs; there the number of dimensions may be unknown yet."""
    _refuse_none(tensors, f"grouped_{call.function}")
    for tensor in tensors:
        dtype_of(tensor)
        if not call.elementwise and tensor.shape.rank is not None:
            check_rows(call.function, [0] * tensor.shape.rank)


def _refuse_none(tensors: Sequence[Any], function: str) -> None:
    if not len(tensors):
        raise UsageError(
            f"{function} of an empty list. There is nothing that the ranks could agree on. Leave the call"
            " out, on all ranks, where there are no tensors."
        )
