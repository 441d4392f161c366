"""What a caller's arguments mean, worked out the same way for every framework.

Pure functions from what the user wrote to what the engine takes. They raise UsageError before anything is sent; none of
them touches a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hora.errors import UnsupportedError, UsageError
from hora.ops.table import Collective
from hora.types import DType, ReduceOp, Reduction

__all__ = ["check_rows", "equal_splits", "predivided", "reduction", "scattered_rows", "splits_of"]


def reduction(
    collective: Collective,
    dtypes: Sequence[DType],
    op: ReduceOp | int | None,
    average: bool | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
) -> Reduction:
    """Resolve ``average=`` against ``op=`` and check the operation and the factors against the element types.

    >>> from hora.ops.table import FUNCTIONS
    >>> allreduce, _ = FUNCTIONS["allreduce"]
    >>> reduction(allreduce, [DType.FLOAT32], op=None).op.name
    'AVERAGE'
    >>> reduction(allreduce, [DType.FLOAT32], op=None, average=False).op.name
    'SUM'
    """
    if average is not None:
        op = _from_average(collective, op, average)
    elif op is None:
        op = ReduceOp.AVERAGE
    elif not isinstance(op, ReduceOp):
        op = _from_number(collective, op)
    if op not in collective.ops:
        allowed = ", ".join(_spelled(o) for o in sorted(collective.ops))
        raise UnsupportedError(
            f"{collective.name}: op={_spelled(op)} is not one of {allowed}. Only these can be carried out on this"
            f" collective. Use one of them, or allreduce, which takes all."
        )
    if op is ReduceOp.ADASUM or DType.BOOL in dtypes:
        _check_dtypes(collective, dtypes, op, prescale, postscale)
    if prescale != 1.0 or postscale != 1.0:
        prescale, postscale = _factor("prescale_factor", prescale), _factor("postscale_factor", postscale)
    return Reduction(op, prescale, postscale)


def _from_average(collective: Collective, op: ReduceOp | int | None, average: bool) -> ReduceOp:
    if op is not None:
        raise UsageError(
            f"{collective.name}: both average={average} and op={_spelled(op)} were given. They say the same thing"
            " twice and could contradict each other. Keep op= only: average=True is op=Average, average=False is"
            " op=Sum."
        )
    return ReduceOp.AVERAGE if average else ReduceOp.SUM


def _from_number(collective: Collective, op: ReduceOp | int) -> ReduceOp:
    try:
        return ReduceOp(op)
    except ValueError:
        raise UsageError(
            f"{collective.name}: op={op!r} is no reduce operation. It says how the ranks' values are combined. Use one"
            f" of {', '.join(map(_spelled, ReduceOp))}."
        ) from None


def _check_dtypes(
    collective: Collective, dtypes: Sequence[DType], op: ReduceOp, prescale: float, postscale: float
) -> None:
    if op is ReduceOp.ADASUM:
        wrong = [dtype for dtype in dtypes if not dtype.is_float]
        if wrong:
            raise UsageError(
                f"{collective.name}: Adasum of {wrong[0].name.lower()}. It scales by real numbers, so only"
                " floating-point tensors make sense. Convert with .float(), or use op=Sum."
            )
    elif op is ReduceOp.AVERAGE:
        raise UsageError(
            f"{collective.name}: Average of bool. The mean of truth values is no truth value. Use op=Max for *any*,"
            " op=Min for *all*, or convert with .float() for the share that is True."
        )
    elif prescale != 1.0 or postscale != 1.0:
        raise UsageError(
            f"{collective.name}: scale factors {prescale} and {postscale} on bool. A truth value cannot be scaled."
            " Leave them at 1, or convert with .float()."
        )


def _factor(argument: str, value: float) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise UsageError(
            f"{argument} is {number}. It would turn every result into inf or nan. Give a finite number; 1.0 changes"
            " nothing."
        )
    return number


def _spelled(op: ReduceOp | int) -> str:
    """The way users write it: ``ReduceOp.SUM`` is ``Sum``."""
    return op.name.capitalize() if isinstance(op, ReduceOp) else repr(op)


def predivided(op: ReduceOp, factor: float, ranks: int) -> Reduction:
    """How the gradients of ``ranks`` ranks are combined, if they are divided by ``factor`` before the sum and by the
    rest of their number after it; a factor of 1 leaves all of that to ``op``.

    >>> predivided(ReduceOp.AVERAGE, 4.0, 2)[:3]
    (<ReduceOp.SUM: 1>, 0.25, 2.0)
    """
    if factor != 1.0 and op is not ReduceOp.AVERAGE:
        raise UsageError(
            f"gradient_predivide_factor not supported with op != Average: {factor} and op={_spelled(op)} were given."
            " It splits the division by the number of ranks, of which there is none. Leave it at 1, or use op=Average."
        )
    if not 0 < factor < math.inf:
        raise UsageError(
            f"gradient_predivide_factor={factor}: gradients are divided by it. Give a positive number; 1 changes"
            " nothing."
        )
    return Reduction(op) if factor == 1.0 else Reduction(ReduceOp.SUM, 1.0 / factor, factor / ranks)


def check_rows(function: str, shape: Sequence[int]) -> None:
    """Refuse a 0-d tensor where rows matter."""
    if not shape:
        raise UsageError(
            f"{function} of a 0-d tensor. It works on rows, the first dimension, and a scalar has none. Give it one"
            " with .reshape(1)."
        )


def equal_splits(rows: int, set_size: int) -> tuple[int, ...]:
    """Alltoall without splits: the same number of rows to each rank.

    >>> equal_splits(6, 3)
    (2, 2, 2)
    """
    if rows % set_size:
        raise UsageError(
            f"alltoall of {rows} rows over {set_size} ranks without splits. They do not divide evenly. Give splits,"
            " one number of rows for each rank."
        )
    return (rows // set_size,) * set_size


def splits_of(splits: Sequence[int], rows: int, set_size: int) -> tuple[int, ...]:
    """Alltoall with splits: one number for each rank, none negative, not more than there are rows.

    >>> splits_of([1, 0, 2], 4, 3)
    (1, 0, 2)
    """
    if len(splits) != set_size:
        problem = f"has {len(splits)} numbers for {set_size} ranks"
    elif any(n < 0 for n in splits):
        problem = "has a negative number"
    elif sum(splits) > rows:
        problem = f"adds up to {sum(splits)} but the tensor has {rows} rows"
    else:
        return tuple(splits)
    raise UsageError(
        f"alltoall: splits={list(splits)} {problem}. Split i says how many rows rank i of the set gets. Give {set_size}"
        f" numbers that are not negative and add up to at most {rows}."
    )


def scattered_rows(rows: int, set_size: int, index: int) -> int:
    """How many rows of a reducescatter fall to the ``index``-th rank of the set: the lowest ranks take the remainder.

    >>> [scattered_rows(8, 3, i) for i in range(3)]
    [3, 3, 2]
    """
    return rows // set_size + (index < rows % set_size)
