"""How the gradients of a step travel: what optimizers and tapes of every framework were asked to do with them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from hora.engine import session
from hora.engine.process_set import ProcessSet, global_process_set
from hora.errors import UnsupportedError, UsageError
from hora.ops.compression import NoneCompressor, has_memory
from hora.ops.resolve import predivided
from hora.types import ReduceOp, Reduction

__all__ = ["GradientRule"]


class GradientRule(msgspec.Struct, frozen=True):
    """What is done with gradients: how they are combined, with whom, in which form.

    >>> GradientRule(predivide=4.0, factor=3.0).reduction(ranks=2)[:3]
    (<ReduceOp.SUM: 1>, 0.25, 6.0)
    """

    op: ReduceOp = ReduceOp.AVERAGE
    predivide: float = 1.0  # what they are divided by before the sum, if not by all of it after
    factor: float = 1.0  # what they are multiplied by besides
    compression: Any = NoneCompressor  # a Compressor, or a GradientCompressor
    sparse_as_dense: bool = False
    process_set: ProcessSet = global_process_set
    scale_local: bool = True  # divide those that stay by the number of ranks, as an average would
    name: str | None = None

    def check(self, *others: ReduceOp, advice: str = "Use op=Average or op=Sum.") -> None:
        """Refuse what makes no sense: reduce operations besides Average, Sum and ``others``; and what cannot be."""
        if self.op not in (ReduceOp.AVERAGE, ReduceOp.SUM, *others):
            raise UnsupportedError(
                f"DistributedOptimizer with op={self.op.name.capitalize()}. Gradients are combined to the gradient of"
                f" all ranks' loss. {advice}"
            )
        self.reduction(1)
        if has_memory(self.compression) and (self.predivide != 1.0 or self.factor != 1.0):
            raise UsageError(
                f"gradient_predivide_factor or backward_passes_per_step with compression={self.compression!r}. It"
                " has a memory of what it left out, which must not be scaled. Leave one of them out."
            )

    @property
    def how(self) -> Reduction:
        """How the gradients of the ranks that there are now are combined."""
        return self.reduction(len(self.process_set.members))

    def reduction(self, ranks: int) -> Reduction:
        """How ``ranks`` ranks' gradients are combined."""
        how = predivided(self.op, self.predivide, ranks)
        return how if self.factor == 1.0 else how._replace(postscale=how.postscale * self.factor)

    def takes_part(self) -> bool:
        """Whether there is anybody to combine this rank's gradients with, or may be when a compiled program runs."""
        members = self.process_set.members
        return session.engine().rank in members and (len(members) > 1 or session.may_grow())

    def apply(
        self,
        gradients: Sequence[Any],
        reduce: Callable[[list[Any]], list[Any]],
        scaled: Callable[[Any, float], Any],
        local: Collection[int] = (),
    ) -> list[Any]:
        """The gradients to step with: ``reduce`` combines those that travel. Those at the places ``local`` stay on
        their rank; None stays None."""
        result, together = list(gradients), self.takes_part()
        places = [i for i, gradient in enumerate(result) if gradient is not None]
        travel = [i for i in places if i not in local] if together else []
        factor = self.factor / len(self.process_set.members) if self.scale_local and together else self.factor
        if factor != 1.0:
            for i in set(places).difference(travel):
                result[i] = scaled(result[i], factor)
        if travel:
            for i, gradient in zip(travel, reduce([result[i] for i in travel]), strict=True):
                result[i] = gradient
        return result
