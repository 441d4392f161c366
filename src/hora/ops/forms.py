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
from hora.ops.call import Call
from hora.ops.compression import has_memory
from hora.ops.dialects import Dialect, Signature, signatures
from hora.ops.document import render
from hora.ops.resolve import reduction
from hora.ops.table import FUNCTIONS, TENSOR, Collective, Form
from hora.types import DType, Kind, ReduceOp

__all__ = ["Forms", "make"]

T = TypeVar("T")

_NAMES = {"ProcessSet": ProcessSet, "ReduceOp": ReduceOp, "global_process_set": global_process_set}
_ALLREDUCE, _REDUCESCATTER = FUNCTIONS["allreduce"][0], FUNCTIONS["reducescatter"][0]


class Forms(Generic[T]):
    """What the functions do. Those of a collective all call one method here, of its name: with the form, the tensors as
    a list, and the table's other arguments in the table's order, None for those that the form has not.

    A front-end must define ``dtype_of`` and ``carry``, and ``begin`` if it has asynchronous forms.
    """

    call: type[Call] = Call
    memories = True  # whether a group may be given to a compressor with a memory: named gradients

    # ---- what a front-end says ----

    def given(self, tensor: Any) -> T:
        """What the user gave, as a tensor; refuses what is none."""
        taken: T = tensor
        return taken

    def dtype_of(self, tensor: T) -> DType:
        """Its element type; refuses what cannot be carried."""
        raise NotImplementedError

    def carry(self, call: Call, tensors: list[T], in_place: bool) -> list[T]:
        """Carry it out and wait, so that gradients flow if the framework has them. After the rows that an alltoall gave
        stands how many came from each rank."""
        raise NotImplementedError

    def begin(self, call: Call, tensors: list[T], in_place: bool) -> UnderWay[list[T]]:
        """The same, without waiting and without gradients."""
        raise NotImplementedError

    def between_hosts(self, compression: Any, tensors: Sequence[T]) -> DType | None:
        """The type that the backend itself rounds to between hosts, if that is what the compression means."""
        return None

    def is_copy(self, tensor: T, given: Any) -> bool:
        """Whether compression made it, so that it may be overwritten."""
        return False

    def splits(self, splits: Any) -> tuple[int, ...] | None:
        """How many rows each rank gets, as plain numbers, whether they came as a tensor, an array or a list."""
        if splits is None:
            return None
        try:
            return tuple(operator.index(n) for n in (splits.tolist() if hasattr(splits, "tolist") else splits))
        except TypeError:
            raise UsageError(
                f"alltoall: splits={splits!r} is no list of integers. It says how many rows each rank gets. Give a list"
                " or a 1-d tensor of integers."
            ) from None

    # ---- the collectives ----

    def allreduce(
        self,
        form: Form,
        given: Sequence[Any],
        average: bool | None,
        name: str | None,
        compression: Any,
        op: ReduceOp | None,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
    ) -> Any:
        return self._reduce(_ALLREDUCE, form, given, op, average, prescale, postscale, name, process_set, compression)

    def reducescatter(
        self,
        form: Form,
        given: Sequence[Any],
        name: str | None,
        compression: Any,
        op: ReduceOp | None,
        process_set: ProcessSet,
        prescale: float,
        postscale: float,
    ) -> Any:
        return self._reduce(_REDUCESCATTER, form, given, op, None, prescale, postscale, name, process_set, compression)

    def allgather(self, form: Form, given: Sequence[Any], name: str | None, process_set: ProcessSet) -> Any:
        call = self.call(Kind.ALLGATHER, name, process_set, grouped=form.grouped)
        return self._run(form, call, [self.given(tensor) for tensor in given])

    def broadcast(
        self, form: Form, given: Sequence[Any], root_rank: int, name: str | None, process_set: ProcessSet
    ) -> Any:
        call = self.call(Kind.BROADCAST, name, process_set, root=root_rank)
        return self._run(form, call, [self.given(tensor) for tensor in given])

    def alltoall(self, form: Form, given: Sequence[Any], splits: Any, name: str | None, process_set: ProcessSet) -> Any:
        """With splits, also how many rows came from each rank."""
        call = self.call(Kind.ALLTOALL, name, process_set, splits=self.splits(splits))
        tensors = [self.given(tensor) for tensor in given]
        if form.asynchronous:
            return handle.new(self.begin(call, tensors, False).then(_first if splits is None else tuple))
        received = self.carry(call, tensors, False)
        return received[0] if splits is None else tuple(received)

    def barrier(self, form: Form, process_set: ProcessSet) -> Any:
        session.engine().barrier(process_set)

    def join(self, form: Form, device: int, average_active: bool) -> Any:
        return session.engine().join(average_active)

    # ---- what they share ----

    def _reduce(
        self,
        collective: Collective,
        form: Form,
        given: Sequence[Any],
        op: ReduceOp | None,
        average: bool | None,
        prescale: float,
        postscale: float,
        name: str | None,
        process_set: ProcessSet,
        compression: Any,
    ) -> Any:
        tensors, contexts, memory = [self.given(tensor) for tensor in given], None, None
        if self.memories and form.grouped and name and has_memory(compression):
            compression, memory = None, compression
        wire = None if compression is None else self.between_hosts(compression, tensors)
        if compression is not None and wire is None:
            packed = [compression.compress(tensor) for tensor in tensors]
            tensors, contexts = [small for small, _ in packed], [context for _, context in packed]
        types = [self.dtype_of(tensor) for tensor in tensors] if wire is None else [wire]
        how = reduction(collective, types, op, average, prescale, postscale)
        if wire is not None:
            how = how._replace(wire=wire)
        assert collective.kind is not None
        call = self.call(collective.kind, name, process_set, how=how, grouped=form.grouped, memory=memory)
        if contexts is None:
            return self._run(form, call, tensors)
        ours = all(self.is_copy(small, tensor) for small, tensor in zip(tensors, given, strict=True))
        results = self.carry(call, tensors, ours)
        made = [compression.decompress(result, context) for result, context in zip(results, contexts, strict=True)]
        return made if form.grouped else made[0]

    def _run(self, form: Form, call: Call, tensors: list[T]) -> Any:
        if form.asynchronous:
            under_way = self.begin(call, tensors, form.in_place)
            return handle.new(under_way if form.grouped else under_way.then(_first))
        results = self.carry(call, tensors, form.in_place)
        return results if form.grouped else results[0]


def _first(results: Sequence[T]) -> T:
    return results[0]


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
    exec(compile(source, str(place.__file__), "exec"), space)  # the file's name tells it from the user's code
    for each in found:
        function = own.get(each.name, space[each.name])
        function.__module__ = module
        function.__doc__ = render(each.collective, each.form, each.note, each.arguments)
        setattr(place, each.name, public(function))
    return [each.name for each in found]


def _body(signature: Signature) -> str:
    said = [argument.name for argument in signature.arguments]
    handed, rest = [f"_Form.{signature.form.name}"], signature.collective.arguments
    if rest[0] is TENSOR:
        handed.append(said[0] if signature.form.grouped else f"[{said[0]}]")
        rest = rest[1:]
    handed += [argument.name if argument.name in said else "None" for argument in rest]
    return f"return _forms.{signature.collective.name}({', '.join(handed)})"
