"""Gradients of the collectives, carried out as the table says (``ops.table.Backward``), for every framework.

The gradients are Horovod's, so that ported scripts learn as they did; its scales are disputed (horovod/horovod#2654),
and they deserve to be known. With n ranks and a loss that is the sum of all ranks' losses::

    collective              gradient here                       times the exact one
    allreduce               allreduce, same op and factors      1
    allgather               average over ranks, own rows        1/n
    broadcast               average over ranks, zero off root   1/n
    alltoall                alltoall, the other way             1
    reducescatter Average   allgather                           n
    reducescatter Sum       allgather, times n                  n

The gradient's operation is named after the forward one (``allreduce.loss.grad``), so ranks pair them whatever order
their backward passes take. It is itself differentiable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec

from hora.errors import UsageError
from hora.ops.call import Call, Results
from hora.ops.table import BACKWARD, Kept
from hora.types import ReduceOp, Rows

__all__ = ["Gradients"]

T = TypeVar("T")


class Gradients(Generic[T]):
    """What it takes of a framework. ``given`` stands for a tensor that the forward collective was given: its shape, or
    whatever the framework knows that by; ``rows`` for how many rows came from each rank."""

    advice: str  # what to do where there is no gradient, before ", or use op=Sum or op=Average"

    def carry(self, call: Call, grads: list[T]) -> Results[T]:
        """Carry it out so that gradients flow again."""
        raise NotImplementedError

    def call(self, call: Call, given: Sequence[Any], **changed: Any) -> Call:
        """The backward call: the forward one with these fields changed."""
        return msgspec.structs.replace(call, **changed)

    def where(self, call: Call) -> str:
        """Where in the user's source it stands, if the error that is raised here does not show it."""
        return ""

    def splits(self, rows: Any) -> Any:
        """To send back as many rows as came."""
        return rows

    def scaled(self, grad: T, factor: float) -> T:
        product: Any = grad * factor  # type: ignore[operator]
        return product  # type: ignore[no-any-return]

    def zeros(self, like: T) -> T:
        raise NotImplementedError

    def own_rows(self, grad: T, rows: Any, mine: int, given: Any) -> T:
        """Of rows that came together those that the ``mine``-th rank of the set brought."""
        raise NotImplementedError

    def returned(self, grad: T, given: Any) -> T:
        """With zeros below, up to as many rows as were given."""
        raise NotImplementedError

    def of(
        self, call: Call, name: str | None, grads: Sequence[T], given: Sequence[Any], rows: Sequence[Any]
    ) -> list[T]:
        """The gradients of what was given to the call, from those of its results."""
        rule = BACKWARD[call.kind]
        if call.kind.ops and call.how.op not in rule.ops:
            raise UsageError(
                f"the gradient of {call.function} with op={call.how.op.name.capitalize()}{self.where(call)} was asked"
                f" for. None is defined. {self.advice}, or use op=Sum or op=Average."
            )
        members, sent = call.process_set, list(grads)
        if rule.scaled:
            factor = call.how.prescale * call.how.postscale * (members.size() if call.how.op is ReduceOp.SUM else 1)
            sent = [self.scaled(grad, factor) for grad in sent] if factor != 1 else sent
        splits = self.splits(rows[0]) if rule.kind.rows is Rows.EXCHANGED else None
        how = call.how if rule.how is None else rule.how
        back = self.call(call, given, kind=rule.kind, name=name, how=how, root=-1, splits=splits)
        results = self.carry(back, sent).tensors
        match rule.kept:
            case Kept.ALL:
                return results
            case Kept.AT_ROOT:
                at_root = members.members[members.rank()] == call.root
                return results if at_root else [self.zeros(grad) for grad in results]
            case Kept.OWN_ROWS:
                parts, mine = zip(results, rows, given, strict=True), members.rank()
                return [self.own_rows(grad, counts, mine, own) for grad, counts, own in parts]
            case Kept.RETURNED:
                return [self.returned(grad, own) for grad, own in zip(results, given, strict=True)]
