"""What differs between the front-ends' functions: which forms a framework has, and Horovod's order of arguments there.

The table says what a collective is, a dialect how one framework's users say it. Both together are a function's
signature: ``signatures`` lists them, ``ops.forms`` makes functions of them and ``docs/stubs.py`` the type stubs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from hora.ops.table import OP, TABLE, Argument, Collective, Form

__all__ = ["DIALECTS", "Dialect", "Signature", "signatures"]


@dataclass(frozen=True, slots=True)
class Dialect:
    """One framework's way to say it.

    ``given`` is the type of what it takes for a tensor, ``tensor`` of what it returns, ``imports`` what these and the
    compressors come from. It has the forms in ``forms`` and the functions in ``also``; of ``collectives``, if they are
    named, only those. ``orders`` has the arguments of functions that differ from the table's, ``arguments`` those that
    are not in it, ``notes`` what is added to docstrings. ``in_graph``: what waits may return an operation of a graph.
    """

    given: str
    tensor: str
    forms: tuple[Form, ...]
    imports: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    collectives: tuple[str, ...] = ()
    in_graph: bool = False
    arguments: Mapping[str, Argument] = field(default_factory=dict)
    orders: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Signature:
    """One function of one front-end."""

    name: str
    collective: Collective
    form: Form
    arguments: tuple[Argument, ...]
    returns: str
    note: str = ""

    def text(self, body: str) -> str:
        """Its definition."""
        said = [f"{a.name}: {a.type}" + (f" = {a.default}" if a.default else "") for a in self.arguments]
        return f"def {self.name}({', '.join(said)}) -> {self.returns}: {body}"


def signatures(dialect: Dialect) -> Iterator[Signature]:
    """Every function of a front-end, in the table's order.

    >>> from hora.ops.dialects import DIALECTS
    >>> next(s for s in signatures(DIALECTS["torch"]) if s.name == "broadcast_").text("...")
    'def broadcast_(tensor: torch.Tensor, root_rank: int, name: str | None = None, \
process_set: ProcessSet = global_process_set) -> torch.Tensor: ...'
    """
    for collective in TABLE:
        if collective.name == "sparse_allreduce" or (
            dialect.collectives and collective.name not in dialect.collectives
        ):
            continue  # sparse tensors are torch's own: hora.torch.sparse
        for form in collective.forms:
            if form in dialect.forms or form.function(collective.name) in dialect.also:
                yield _signature(dialect, collective, form)


def _signature(dialect: Dialect, collective: Collective, form: Form) -> Signature:
    name = form.function(collective.name)
    usual = {argument.name: argument for argument in collective.parameters(form)}
    order = dialect.orders.get(name, " ".join(usual)).split()
    known = {**usual, **dialect.arguments}
    found = tuple(_typed(known[word], dialect) for word in order)
    return Signature(name, collective, form, found, _returns(dialect, collective, form), dialect.notes.get(name, ""))


def _typed(argument: Argument, dialect: Dialect) -> Argument:
    text = argument.type.format(given=dialect.given, tensor=dialect.tensor)
    text = "Any" if text == "Sequence[int] | Any | None" else text
    return Argument(argument.name, argument.doc, text, argument.default, argument.only)


def _returns(dialect: Dialect, collective: Collective, form: Form) -> str:
    tensor = dialect.tensor
    if form.asynchronous:
        return "int"
    if collective.name in ("barrier", "join"):
        return "Any" if dialect.in_graph else "None" if collective.name == "barrier" else "int"
    if collective.name == "alltoall":
        return "Any" if tensor == "Any" else f"{tensor} | tuple[{tensor}, {tensor}]"
    return f"list[{tensor}]" if form.grouped else tensor


_BLOCKING = tuple(form for form in Form if not form.asynchronous)

_PRIORITY = Argument("priority", "Taken for Horovod's sake.", "int", "0")
_MXNET_REDUCE = "average name priority prescale_factor postscale_factor process_set op"
_MXNET_SCATTER = "op name priority process_set prescale_factor postscale_factor"

_SAME_ROWS = "Under ``jit`` all ranks must bring equally many rows: the shape of a result is fixed beforehand."

DIALECTS: dict[str, Dialect] = {
    "torch": Dialect(
        "torch.Tensor",
        "torch.Tensor",
        tuple(Form),
        ("import torch", "from hora.torch.compression import Compression, Compressor"),
    ),
    "jax": Dialect(
        "Any",
        "jax.Array",
        tuple(form for form in Form if not form.in_place),  # arrays cannot be changed
        ("import jax", "from hora.jax.compression import Compression, Compressor"),
        notes={
            "allgather": _SAME_ROWS,
            "grouped_allgather": _SAME_ROWS,
            "alltoall": "Under ``jit`` only without ``splits``: the shape of the result is fixed beforehand.",
        },
    ),
    "tensorflow": Dialect(
        "Any",
        "Any",
        (Form.SYNC, Form.GROUPED),
        ("from hora.tensorflow.compression import Compression, Compressor",),
        also=("broadcast_",),
        in_graph=True,
        arguments={
            "variables": Argument("variables", "A variable, or a list of variables, which travel together.", "Any"),
            "device_dense": Argument(
                "device_dense", "Taken for Horovod's sake: results are where tensors are.", "str", '""'
            ),
            "device_sparse": Argument("device_sparse", "Taken for Horovod's sake, too.", "str", '""'),
            "ignore_name_scope": Argument(
                "ignore_name_scope", "Taken for Horovod's sake: names never depend on a scope.", "bool", "False"
            ),
            "op": OP,
        },
        orders={
            "allreduce": "tensor average device_dense device_sparse compression op prescale_factor postscale_factor"
            " name process_set ignore_name_scope",
            "grouped_allreduce": "tensors average device_dense device_sparse compression op prescale_factor"
            " postscale_factor process_set ignore_name_scope name",
            "allgather": "tensor name ignore_name_scope process_set",
            "grouped_allgather": "tensors name ignore_name_scope process_set",
            "broadcast": "tensor root_rank name ignore_name_scope process_set",
            "broadcast_": "variables root_rank name process_set",
            "alltoall": "tensor splits name ignore_name_scope process_set",
            "reducescatter": "tensor device_dense compression op name process_set ignore_name_scope"
            " prescale_factor postscale_factor",
            "grouped_reducescatter": "tensors device_dense compression op process_set prescale_factor postscale_factor"
            " name",
        },
        notes={
            "allreduce": "``tf.IndexedSlices`` may be given, for Sum and Average: the slices of all ranks are gathered"
            " and stay slices.",
            "grouped_allreduce": "``tf.IndexedSlices`` may be among them, for Sum and Average; they are gathered, as a"
            " group of their own.",
            "broadcast_": "Returns the variables' new values.",
            "barrier": "Returns None; in a graph for sessions, the operation to run.",
            "join": "Returns an integer; inside a ``tf.function``, a tensor.",
        },
    ),
    "mxnet": Dialect(
        "Any",
        "Any",
        _BLOCKING,
        arguments={"priority": _PRIORITY},
        orders={
            "allreduce": f"tensor {_MXNET_REDUCE}",
            "allreduce_": f"tensor {_MXNET_REDUCE}",
            "grouped_allreduce": f"tensors {_MXNET_REDUCE}",
            "grouped_allreduce_": f"tensors {_MXNET_REDUCE}",
            "allgather": "tensor name priority process_set",
            "grouped_allgather": "tensors name priority process_set",
            "broadcast": "tensor root_rank name priority process_set",
            "broadcast_": "tensor root_rank name priority process_set",
            "alltoall": "tensor splits name priority process_set",
            "reducescatter": f"tensor {_MXNET_SCATTER}",
            "grouped_reducescatter": f"tensors {_MXNET_SCATTER}",
        },
    ),
    "keras": Dialect(
        "Any",
        "Any",
        (Form.SYNC,),
        collectives=("allreduce", "allgather", "broadcast", "reducescatter", "barrier"),
        arguments={
            "value": Argument("value", "A number, a list, an array or a tensor.", "Any"),
            "compression": Argument(
                "compression", "A compressor of the backend's front-end, such as ``Compression.fp16``.", "Any", "None"
            ),
        },
        orders={
            "allreduce": "value name average prescale_factor postscale_factor op compression process_set",
            "allgather": "value name process_set",
            "broadcast": "value root_rank name process_set",
            "reducescatter": "value name op prescale_factor postscale_factor process_set",
        },
    ),
}
