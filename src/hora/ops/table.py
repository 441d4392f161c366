"""The one table of collectives. Every front-end's functions, their documentation and their type stubs are made from it.

The table says, for each collective, which forms exist, what arguments they take, which reduce operations make sense,
what it means and what its gradient is, in words and as data. ``ops.forms`` makes functions of it, ``ops.resolve``
checks operations against it, ``ops.backward`` carries gradients out by it, ``ops.document`` writes docstrings from it,
and a test holds each front-end to it, form by form and argument by argument. What the engine must know, too (which rows
a rank gets, which operations a kind can do), is said of the kinds themselves, in ``hora.types``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from hora.types import Kind, ReduceOp, Reduction

__all__ = ["BACKWARD", "FUNCTIONS", "TABLE", "Argument", "Backward", "Collective", "Form", "Kept"]


class Form(enum.Enum):
    """How a collective may be called; the value is the pattern of the function's name.

    >>> Form.GROUPED_ASYNC_INPLACE.function("allreduce")
    'grouped_allreduce_async_'
    >>> Form.GROUPED_ASYNC_INPLACE.asynchronous, Form.SYNC.in_place
    (True, False)
    """

    SYNC = "{}"
    ASYNC = "{}_async"
    INPLACE = "{}_"
    ASYNC_INPLACE = "{}_async_"
    GROUPED = "grouped_{}"
    GROUPED_ASYNC = "grouped_{}_async"
    GROUPED_INPLACE = "grouped_{}_"
    GROUPED_ASYNC_INPLACE = "grouped_{}_async_"

    pattern: str
    grouped: bool
    asynchronous: bool
    in_place: bool

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.grouped = pattern.startswith("grouped_")
        self.asynchronous = "_async" in pattern
        self.in_place = pattern.endswith("_")

    def function(self, collective: str) -> str:
        return self.pattern.format(collective)


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument: its name, what it is, its type and default as they stand in a signature, and in which forms it
    appears (everywhere, if none are listed). Without a default it must be given.

    ``{given}`` in a type is what a front-end takes for a tensor, ``{tensor}`` what it returns.
    """

    name: str
    doc: str
    type: str
    default: str = ""
    only: tuple[Form, ...] = ()


class Kept(enum.Enum):
    """What a rank keeps of the collective that its incoming gradients go through."""

    ALL = enum.auto()
    AT_ROOT = enum.auto()  # all of it on the root, and zeros elsewhere
    OWN_ROWS = enum.auto()  # of the rows that came together, those that it brought
    RETURNED = enum.auto()  # what came back, with zeros for rows that had not been sent


@dataclass(frozen=True, slots=True)
class Backward:
    """The gradient of a collective: the incoming gradients go through another one.

    ``how`` is how that combines them; as the collective itself, if it is not said. ``ops`` are those that have a
    gradient. ``scaled``: multiplied beforehand by the collective's factors, and for Sum by the number of ranks.
    """

    kind: Kind
    kept: Kept = Kept.ALL
    how: Reduction | None = None
    ops: frozenset[ReduceOp] = frozenset(ReduceOp)
    scaled: bool = False


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective, in all its forms. ``ops`` is empty where nothing is reduced; ``gradient`` says in words what
    ``backward`` is."""

    name: str
    kind: Kind | None
    forms: tuple[Form, ...]
    summary: str
    meaning: str
    arguments: tuple[Argument, ...]
    returns: str = ""
    gradient: str = ""
    backward: Backward | None = None
    example: str = ""
    ops: frozenset[ReduceOp] = frozenset()

    def parameters(self, form: Form) -> tuple[Argument, ...]:
        """The arguments of one form, in the order of its signature."""
        return tuple(
            TENSORS if form.grouped and argument is TENSOR else argument
            for argument in self.arguments
            if not argument.only or form in argument.only
        )


MEAN = Reduction(ReduceOp.AVERAGE)
ALL_FORMS = tuple(Form)
SINGLE_FORMS = (Form.SYNC, Form.ASYNC, Form.INPLACE, Form.ASYNC_INPLACE)
NOT_IN_PLACE = (Form.SYNC, Form.ASYNC, Form.GROUPED, Form.GROUPED_ASYNC)
BLOCKING_NEW = (Form.SYNC, Form.GROUPED)

TENSOR = Argument("tensor", "The tensor; need not be contiguous.", "{given}")
TENSORS = Argument(
    "tensors", "The tensors, at least one; shapes and element types may differ within the group.", "Sequence[{given}]"
)
AVERAGE = Argument(
    "average",
    "Horovod's older spelling: True is ``op=Average``, False is ``op=Sum``. Not with ``op``.",
    "bool | None",
    "None",
)
NAME = Argument(
    "name",
    "What the operation is called; every rank must use the same. Without one a counter is used, and then all ranks must"
    " make their unnamed calls in the same order.",
    "str | None",
    "None",
)
COMPRESSION = Argument(
    "compression",
    "``Compression.none``, ``.fp16`` or ``.bf16``: reduce in fewer bits.",
    "type[Compressor]",
    "Compression.none",
    BLOCKING_NEW,
)
OP = Argument("op", "How values are combined; Average unless given.", "ReduceOp | None", "None")
MEAN_OR_SUM = Argument("op", "How values are combined; Average unless given.", "ReduceOp", "ReduceOp.AVERAGE")
PRESCALE = Argument("prescale_factor", "Multiplies each rank's values before they are combined.", "float", "1.0")
POSTSCALE = Argument("postscale_factor", "Multiplies the combined values.", "float", "1.0")
PROCESS_SET = Argument(
    "process_set", "The ranks that take part; all of them unless given.", "ProcessSet", "global_process_set"
)
ROOT = Argument("root_rank", "The rank whose values are sent: its rank among all, also within a process set.", "int")

TABLE: tuple[Collective, ...] = (
    Collective(
        "allreduce",
        Kind.ALLREDUCE,
        ALL_FORMS,
        "Combine the tensors of all ranks, element by element.",
        "The result is ``postscale * combine(prescale * tensor_i)`` and the same, bit for bit, on every rank."
        " Shapes and element types must be equal everywhere. Average is the Sum divided by the number of ranks,"
        " truncated toward zero for integers; it is refused for bool. Sum and Max of bool are *or*, Product and Min"
        " are *and*. Adasum adds what is orthogonal and averages what is parallel; it takes floating-point tensors"
        " only.",
        (TENSOR, AVERAGE, NAME, COMPRESSION, OP, PRESCALE, POSTSCALE, PROCESS_SET),
        "the combined tensor",
        "the allreduce of the incoming gradients with the same op and factors, which for Sum and Average is exact."
        " Min, Max and Product have none: asking for it raises.",
        Backward(Kind.ALLREDUCE, ops=frozenset({ReduceOp.AVERAGE, ReduceOp.SUM, ReduceOp.ADASUM})),
        ops=Kind.ALLREDUCE.ops,
        example="With [1, 2] on rank 0 and [3, 6] on rank 1, Sum gives [4, 8] on both, Average [2, 4].",
    ),
    Collective(
        "sparse_allreduce",
        Kind.ALLGATHER,
        (Form.ASYNC,),
        "Combine the sparse COO tensors of all ranks.",
        "Each rank's tensor is coalesced, indices and values are gathered, and equal indices are added up. Shapes"
        " must be equal everywhere; the number of non-zeros may differ. Returns a function, not a handle: call it"
        " to wait.",
        (TENSOR, NAME, OP, PROCESS_SET),
        "the combined tensor, coalesced",
        ops=frozenset({ReduceOp.SUM, ReduceOp.AVERAGE}),
    ),
    Collective(
        "allgather",
        Kind.ALLGATHER,
        NOT_IN_PLACE,
        "Concatenate the tensors of all ranks along the first dimension, in rank order.",
        "The first dimension may differ between ranks, also be 0; the others must be equal. A 0-d tensor has no rows to"
        " concatenate and is refused.",
        (TENSOR, NAME, PROCESS_SET),
        "the concatenation, the same on every rank",
        "the Average of the incoming gradients over the ranks, of which each keeps its own rows: Horovod's"
        " convention. The exact one is their Sum, as many times larger as there are ranks.",
        Backward(Kind.ALLREDUCE, Kept.OWN_ROWS, MEAN),
        example="With [1] on rank 0 and [2, 3] on rank 1, both get [1, 2, 3].",
    ),
    Collective(
        "broadcast",
        Kind.BROADCAST,
        SINGLE_FORMS,
        "Copy the root's tensor to every rank.",
        "Shapes and element types must be equal everywhere, and all ranks must name the same root.",
        (TENSOR, ROOT, NAME, PROCESS_SET),
        "the root's tensor",
        "on the root the Average of the incoming gradients, and zero elsewhere: Horovod's convention. The exact one"
        " is their Sum, as many times larger as there are ranks.",
        Backward(Kind.ALLREDUCE, Kept.AT_ROOT, MEAN),
        example="With [1, 2] on rank 0 and [3, 6] on rank 1, root 1 gives [3, 6] on both.",
    ),
    Collective(
        "alltoall",
        Kind.ALLTOALL,
        (Form.SYNC, Form.ASYNC),
        "Send a slice of rows to each rank, and concatenate the slices received, in rank order.",
        "Rank i gets the next ``splits[i]`` rows of the first dimension; rows beyond the sum of the splits are not"
        " sent. Dimensions other than the first must be equal everywhere. A 0-d tensor is refused.",
        (
            TENSOR,
            Argument(
                "splits",
                "How many rows each rank of the set gets: integers, or an integer tensor. Without, every rank gets the"
                " same number, and the rows must divide evenly.",
                "Sequence[int] | {tensor} | None",
                "None",
            ),
            NAME,
            PROCESS_SET,
        ),
        "the rows received; with ``splits`` given, also how many came from each rank (a 1-d int32 tensor)",
        "sent back the way the rows came, which is exact.",
        Backward(Kind.ALLTOALL, Kept.RETURNED),
        example="With [1, 2, 3] and splits [1, 2] on rank 0, [4, 5] and splits [1, 1] on rank 1, rank 0 gets [1, 4] and"
        " rank 1 gets [2, 3, 5].",
    ),
    Collective(
        "reducescatter",
        Kind.REDUCESCATTER,
        NOT_IN_PLACE,
        "Combine the tensors of all ranks, then leave each rank its share of the rows.",
        "The rows (first dimension) are dealt out in rank order; where they do not divide evenly the lowest ranks"
        " have one more each. Shapes and element types must be equal everywhere. A 0-d tensor is refused.",
        (TENSOR, NAME, COMPRESSION, MEAN_OR_SUM, PROCESS_SET, PRESCALE, POSTSCALE),
        "this rank's rows of the combined tensor",
        "the allgather of the incoming gradients times the factors, and times the number of ranks if the op is Sum:"
        " Horovod's convention. The exact one is as many times smaller as there are ranks.",
        Backward(Kind.ALLGATHER, scaled=True),
        ops=Kind.REDUCESCATTER.ops,
        example="With [1, 2, 3] on rank 0 and [10, 20, 30] on rank 1, Sum gives [11, 22] on rank 0 and [33] on rank 1.",
    ),
    Collective(
        "barrier",
        Kind.BARRIER,
        (Form.SYNC,),
        "Wait until every rank has called this.",
        "",
        (PROCESS_SET,),
    ),
    Collective(
        "join",
        None,
        (Form.SYNC,),
        "Say that this rank has no more data, and wait until every rank has said so.",
        "Until then this rank takes part in the others' allreduces without bringing anything: it counts as zeros"
        " for Sum and is left out of Min, Max and Product. Average divides by the number of all ranks, as in"
        " Horovod, which makes it smaller than the mean of what was brought; ``average_active=True`` divides by the"
        " ranks that still bring data. A barrier does not wait for who has joined; Adasum and other collectives raise"
        " meanwhile.",
        (
            Argument("device", "Taken for Horovod's sake; the device is found from the tensors.", "int", "-1"),
            Argument("average_active", "Divide averages by the number of ranks that have not joined.", "bool", "False"),
        ),
        "the last rank to join",
    ),
)

FUNCTIONS: dict[str, tuple[Collective, Form]] = {
    form.function(collective.name): (collective, form) for collective in TABLE for form in collective.forms
}
"""Every function of the table by its name: ``FUNCTIONS["grouped_allreduce_async_"]``."""

BACKWARD = {c.kind: c.backward for c in TABLE if c.kind is not None and c.backward is not None}
"""How gradients flow through each kind."""
