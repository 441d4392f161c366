"""Which samples of an epoch are left, and who takes them: a pure function of seed, epoch and how many are done.

All workers shuffle alike, so a number says which samples are done: the first ones of the shuffled order. What is left
is dealt out one by one, so after each step of equal batches the samples that are done are the first ones again,
whatever the number of workers was in each step. So none is lost and none is taken twice, whoever comes and goes.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["share", "taken"]


def share(left: Sequence[int], rank: int, size: int) -> list[int]:
    """What one of ``size`` workers takes of the samples that are left.

    All get equally many, so that none waits for another in vain: where they cannot be shared out evenly, the first ones
    are taken once more at the end, as few as possible.

    >>> share([5, 6, 7, 8], 1, 2), share([5, 6, 7], 1, 2)
    ([6, 8], [6, 5])
    """
    if not left:
        return []
    each = -(-len(left) // size)
    return [left[i % len(left)] for i in range(rank, each * size, size)]


def taken(done: int, batch: int, size: int, total: int) -> int:
    """How many samples are done after every one of ``size`` workers took ``batch`` more.

    >>> taken(10, 4, 3, 100), taken(95, 4, 3, 100)
    (22, 100)
    """
    return min(total, done + batch * size)
