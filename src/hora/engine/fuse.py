"""Fusion: which operations that are ready at the same time travel as one. Pure and deterministic.

Only allreduces are fused, and only those that a mover can treat as one long vector. The plan looks ahead past what does
not match: gradients of two element types that arrive interleaved make two batches, not one per change.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from hora.engine.agree import OperationReady
from hora.engine.request import Request
from hora.types import Kind

__all__ = ["plan"]


def plan(
    ready: Iterable[OperationReady], fusion_bytes: int, *, disable_group_fusion: bool = False
) -> list[list[OperationReady]]:
    """Batches in the order of their first operations.

    A batch holds at most ``fusion_bytes`` (0: no fusion) unless a single operation is larger. A grouped operation stays
    whole; with ``disable_group_fusion`` it travels alone.

    >>> from hora.engine.request import TensorSpec
    >>> from hora.types import DType
    >>> def op(name, dtype, count):
    ...     request = Request(Kind.ALLREDUCE, name, (TensorSpec(dtype, (count,)),), (0, 1))
    ...     return OperationReady((name, (0, 1)), 0, False, {0: request, 1: request}, (0, 1), 2)
    >>> ops = [op("a", DType.FLOAT32, 10), op("b", DType.FLOAT16, 10), op("c", DType.FLOAT32, 10)]
    >>> [[r.key[0] for r in batch] for batch in plan(ops, 1024)]
    [['a', 'c'], ['b']]
    >>> [[r.key[0] for r in batch] for batch in plan(ops, 64)]
    [['a'], ['b'], ['c']]
    """
    batches: list[list[OperationReady]] = []
    open_batches: dict[Hashable, tuple[list[OperationReady], int]] = {}  # what may still grow, and its bytes
    for operation in ready:
        request = operation.request
        alike = None if disable_group_fusion and request.grouped else _alike(operation)
        nbytes = sum(segment.nbytes for segment in request.segments)
        batch, filled = open_batches.get(alike, ([], fusion_bytes))
        if batch and filled + nbytes <= fusion_bytes:
            batch.append(operation)
            open_batches[alike] = (batch, filled + nbytes)
            continue
        batches.append([operation])
        if alike is not None and nbytes < filled:  # of two batches, the emptier stays open
            open_batches[alike] = (batches[-1], nbytes)
    return batches


def _alike(operation: OperationReady) -> Hashable | None:
    """What fused operations must have in common; None for what is never fused."""
    request: Request = operation.request
    dtypes = {segment.dtype for segment in request.segments}
    if request.kind is not Kind.ALLREDUCE or len(dtypes) != 1:
        return None
    return (
        dtypes.pop(), request.how, request.device, operation.members, operation.contributors, operation.divisor,
    )  # fmt: skip
