"""What happens to the gradients of one step: which are reduced and how, and which stay.

Nothing here knows when that is (``optimizer``) or by which framework (``adapter``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from hora.engine import session
from hora.engine.process_set import ProcessSet, global_process_set
from hora.errors import UsageError
from hora.keras.adapter import Journey, allreduce_gradients, scaled
from hora.ops.numbering import name_of
from hora.ops.resolve import Reduction, predivided
from hora.transport.base import ReduceOp

__all__ = ["Gradients"]


class Gradients(msgspec.Struct, frozen=True):
    """What a ``DistributedOptimizer`` was asked to do with gradients.

    >>> Gradients(predivide_factor=4.0, factor=3.0).reduction(ranks=2)[:3]
    (<ReduceOp.SUM: 1>, 0.25, 6.0)
    """

    name: str | None = None
    op: ReduceOp = ReduceOp.AVERAGE
    predivide_factor: float = 1.0
    factor: float = 1.0  # what they are multiplied by besides
    compression: Any = None
    sparse_as_dense: bool = False
    process_set: ProcessSet = global_process_set
    scale_local: bool = True

    def check(self) -> None:
        """Refuse what makes no sense."""
        if self.op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
            raise UsageError(
                f"DistributedOptimizer with op={self.op.name.capitalize()}. Gradients are combined to the gradient of"
                " all ranks' loss. Use op=Average or op=Sum; Adasum needs hora.torch."
            )
        self.reduction(ranks=1)

    def reduction(self, ranks: int) -> Reduction:
        """How ``ranks`` ranks' gradients are combined."""
        how = predivided(self.op, self.predivide_factor, ranks)
        return how._replace(postscale=how.postscale * self.factor)

    def reduce(self, owner: object, gradients: Sequence[Any], local: Collection[int] = ()) -> list[Any]:
        """The gradients to step with. Those at the places ``local`` stay on their rank; None stays None."""
        members = self.process_set.members
        alone = session.engine().rank not in members or len(members) == 1
        result = list(gradients)
        places = [i for i, gradient in enumerate(result) if gradient is not None]
        travel = [] if alone else [i for i in places if i not in local]
        factor = self.factor / len(members) if self.scale_local and not alone else self.factor
        if factor != 1.0:
            for i in set(places).difference(travel):
                result[i] = scaled(result[i], factor)
        if travel:
            name = self.name or name_of(owner, "keras.gradients", self.process_set)
            how = self.reduction(len(members))
            journey = Journey(name, how, self.process_set, self.compression, self.sparse_as_dense)
            reduced = allreduce_gradients([result[i] for i in travel], journey)
            for i, gradient in zip(travel, reduced, strict=True):
                result[i] = gradient
        return result
