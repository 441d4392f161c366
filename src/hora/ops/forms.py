"""The functions of every front-end, made from the table: ``allreduce``, ``grouped_allgather_async`` and the others.

``Forms`` has what all of them do, once for each collective; a front-end derives from it and says what is special to its
tensors. ``make`` gives the module that calls it one function for each form in its dialect, with the signature, the
docstring and the annotations that the table and the dialect state. Their type stubs are written by ``docs/stubs.py``.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from hora.engine import handle, session
from hora.engine.backend import UnderWay
from hora.engine.process_set import ProcessSet, global_process_set
from hora.errors import UsageError
from hora.ops.call import Call, Results
from hora.ops.compression import has_memory
from hora.ops.dialects import Dialect, Signature, signatures
from hora.ops.document import render
from hora.ops.resolve import reduction
from hora.ops.table import TABLE, TENSOR, Collective, Form
from hora.types import DType, ReduceOp, Reduction

__all__ = ["Forms", "make"]

T = TypeVar("T")

_NOTHING = Reduction(ReduceOp.SUM)
_NAMES = {"ProcessSet": ProcessSet, "ReduceOp": ReduceOp, "global_process_set": global_process_set}


class Forms(Generic[T]):
    """What the functions do. All that take tensors call ``run``: with the collective, the form, the tensors as a list,
    and the table's other arguments by their names. Each of the others calls the method of its name.

    A front-end must define ``dtype_of`` and ``carry``, and ``begin`` if it has asynchronous forms.
    """

    new_call: type[Call] = Call
    memories = True  # whether a group may be given to a compressor with a memory: named gradients

    # ---- what a front-end says ----

    def given(self, tensor: Any) -> T:
        """What the user gave, as a tensor; refuses what is none."""
        taken: T = tensor
        return taken

    def dtype_of(self, tensor: T) -> DType:
        """Its element type; refuses what cannot be carried."""
        raise NotImplementedError

    def carry(self, call: Call, tensors: list[T], in_place: bool) -> Results[T]:
        """Carry it out and wait, so that gradients flow if the framework has them."""
        raise NotImplementedError

    def begin(self, call: Call, tensors: list[T], in_place: bool) -> UnderWay[Results[T]]:
        """The same, without waiting and without gradients."""
        raise NotImplementedError

    def counts(self, rows: Any) -> T:
        """How many rows came from each rank, as users get it."""
        counted: T = rows
        return counted

    def between_hosts(self, compression: Any, tensors: Sequence[T]) -> DType | None:
        """The type that the backend itself rounds to between hosts, if that is what the compression means."""
        return None

    def is_copy(self, tensor: T, given: Any) -> bool:
        """Whether compression made it, so that it may be overwritten."""
        return False

    def splits(self, splits: Any) -> Any:
        """How many rows each rank gets, as plain numbers, whether they came as a tensor, an array or a list."""
        try:
            return tuple(operator.index(n) for n in (splits.tolist() if hasattr(splits, "tolist") else splits))
        except TypeError:
            raise UsageError(
                f"alltoall: splits={splits!r} is no list of integers. It says how many rows each rank gets. Give a list"
                " or a 1-d tensor of integers."
            ) from None

    # ---- the collectives ----

    def run(
        self,
        collective: Collective,
        form: Form,
        given: Sequence[Any],
        *,
        name: str | None,
        process_set: ProcessSet,
        op: ReduceOp | None = None,
        average: bool | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        compression: Any = None,
        root_rank: int = -1,
        splits: Any = None,
    ) -> Any:
        assert collective.kind is not None
        tensors, contexts, memory, how = [self.given(tensor) for tensor in given], None, None, _NOTHING
        if collective.ops:
            if self.memories and form.grouped and name and has_memory(compression):
                compression, memory = None, compression
            wire = None if compression is None else self.between_hosts(compression, tensors)
            if compression is not None and wire is None:
                packed = [compression.compress(tensor) for tensor in tensors]
                tensors, contexts = [small for small, _ in packed], [context for _, context in packed]
            types = [self.dtype_of(tensor) for tensor in tensors] if wire is None else [wire]
            how = reduction(collective, types, op, average, prescale_factor, postscale_factor)
            if wire is not None:
                how = how._replace(wire=wire)
        splits = None if splits is None else self.splits(splits)
        call = self.new_call(collective.kind, name, process_set, how, root_rank, splits, form.grouped, memory)
        if contexts is None:
            return self._run(form, call, tensors)
        ours = all(self.is_copy(small, tensor) for small, tensor in zip(tensors, given, strict=True))
        results = self.carry(call, tensors, ours).tensors
        made = [compression.decompress(result, context) for result, context in zip(results, contexts, strict=True)]
        return made if form.grouped else made[0]

    def _run(self, form: Form, call: Call, tensors: list[T]) -> Any:
        def handed_out(results: Results[T]) -> Any:
            if call.splits is not None:  # then also how many rows came from each rank
                return results.tensors[0], self.counts(results.rows[0])
            return results.tensors if form.grouped else results.tensors[0]

        if form.asynchronous:
            return handle.new(self.begin(call, tensors, form.in_place).then(handed_out))
        return handed_out(self.carry(call, tensors, form.in_place))

    def barrier(self, form: Form, *, process_set: ProcessSet) -> Any:
        session.engine().barrier(process_set)

    def join(self, form: Form, *, device: int, average_active: bool) -> Any:
        return session.engine().join(average_active)


# ---- functions from signatures ---------------------------------------------------------------------------------------


def make(
    dialect: Dialect,
    forms: Forms[Any],
    module: str,
    by_hand: Sequence[Callable[..., Any]] = (),
    public: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda function: function,
    **names: Any,
) -> list[str]:
    """Put the functions of a dialect into a module; their names, for its ``__all__``.

    ``by_hand`` are functions that take the place of those made here; ``public`` is put around every one; ``names`` are
    what defaults and annotations refer to, besides those of all dialects.
    """
    place, own = sys.modules[module], {function.__name__: function for function in by_hand}
    found = list(signatures(dialect))
    source = "\n".join(["from __future__ import annotations", *(each.text(_body(each)) for each in found)])
    space = {"__name__": module, "_forms": forms, "_Form": Form, "Any": Any, "Sequence": Sequence, **_NAMES, **names}
    space |= {f"_{collective.name}": collective for collective in TABLE}
    exec(compile(source, str(place.__file__), "exec"), space)  # the file's name tells it from the user's code
    for each in found:
        function = own.get(each.name, space[each.name])
        function.__module__ = module
        function.__doc__ = render(each.collective, each.form, each.note, each.arguments)
        setattr(place, each.name, public(function))
    return [each.name for each in found]


def _body(signature: Signature) -> str:
    """Its call of ``run``, or of the method of its name. A dialect's own arguments are taken for Horovod's sake."""
    collective, form = signature.collective, f"_Form.{signature.form.name}"
    said, known = (
        [argument.name for argument in signature.arguments],
        [argument.name for argument in collective.arguments],
    )
    if collective.arguments[0] is TENSOR:
        tensors = said.pop(0)
        called = f"run(_{collective.name}, {form}, {tensors if signature.form.grouped else f'[{tensors}]'}"
    else:
        called = f"{collective.name}({form}"
    return f"return _forms.{', '.join([called, *(f'{name}={name}' for name in said if name in known)])})"
