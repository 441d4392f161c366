"""Sums in the order of logical workers, whichever process computes them: the same bits on any number of processes.

Floating-point sums depend on where the brackets are. Here they are fixed by the number of workers alone: a binary tree
over the workers 0 to V - 1, whose nodes cover the blocks of 1, 2, 4, … workers that begin at a multiple of their width.
A process adds up the blocks that it has whole; the processes exchange these, each completes the tree for its share of
the elements, and all get all shares. What travels is about what a sum between processes costs anyway, if the processes'
workers are whole blocks, and a few times that if they are not.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple

import torch

import hora.torch as hvd

__all__ = ["OrderedSum", "shares"]


def shares(total: int, size: int) -> list[range]:
    """Which workers each of ``size`` processes plays.

    >>> shares(4, 3)
    [range(0, 1), range(1, 2), range(2, 4)]
    """
    return [range(total * rank // size, total * (rank + 1) // size) for rank in range(size)]


class _Block(NamedTuple):
    """Workers ``start`` to ``start + width - 1``, and the sum of what they have."""

    start: int
    width: int
    values: torch.Tensor


def _push(blocks: list[_Block], block: _Block) -> None:
    """Append a block to those before it, and add up what then is a larger block. Changes values in place."""
    while blocks:
        left = blocks[-1]
        if left.width != block.width or left.start % (2 * left.width) or left.start + left.width != block.start:
            break
        blocks.pop()
        block = _Block(left.start, 2 * left.width, left.values.add_(block.values))
    blocks.append(block)


def _spans(workers: range) -> list[tuple[int, int]]:
    """The blocks (start, width) that ``_push`` leaves of these workers.

    >>> _spans(range(1, 4)), _spans(range(0, 6))
    ([(1, 1), (2, 2)], [(0, 4), (4, 2)])
    """
    nothing = torch.empty(0)
    blocks: list[_Block] = []
    for worker in workers:
        _push(blocks, _Block(worker, 1, nothing))
    return [(block.start, block.width) for block in blocks]


def _completed(blocks: Iterable[_Block]) -> torch.Tensor:
    """The sum over all workers, from blocks in their order."""
    stack: list[_Block] = []
    for block in blocks:
        _push(stack, block)
    values = stack.pop().values
    while stack:  # V is no power of two: the smaller blocks at the end first
        values = stack.pop().values.add_(values)
    return values


class OrderedSum:
    """One sum over ``total`` workers. This process adds those of its share, in order; then ``result``.

    >>> hvd.init()
    >>> sum = OrderedSum(3)
    >>> for worker in range(3):
    ...     sum.add(worker, torch.tensor([1.0, 10.0 * worker]))
    >>> sum.result()
    tensor([ 3., 30.])
    >>> hvd.shutdown()
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._blocks: list[_Block] = []

    def add(self, worker: int, values: torch.Tensor) -> None:
        """What a worker has, as a vector of the sum's own."""
        _push(self._blocks, _Block(worker, 1, values))

    def result(self) -> torch.Tensor:
        """The sum; the same on all processes, which call it together."""
        rank, size = hvd.rank(), hvd.size()
        if size == 1:
            return _completed(self._blocks)
        length = self._blocks[0].values.numel()
        bounds = [length * place // size for place in range(size + 1)]
        widths = [after - before for before, after in pairwise(bounds)]
        pieces = [block.values[bounds[to] : bounds[to + 1]] for to in range(size) for block in self._blocks]
        sent = torch.cat(pieces)
        self._blocks.clear()
        splits = torch.tensor([len(_spans(shares(self._total, size)[rank])) * width for width in widths])
        received: Any = hvd.alltoall(sent, splits, name="hora.ordered.blocks")
        spans = [span for workers in shares(self._total, size) for span in _spans(workers)]
        rows = received[0].view(len(spans), widths[rank])
        own = _completed(_Block(start, width, row) for (start, width), row in zip(spans, rows, strict=True))
        result: torch.Tensor = hvd.allgather(own, name="hora.ordered.sums")
        return result
