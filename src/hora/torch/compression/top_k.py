"""TopK: only the largest elements are sent.

::

    C(x) = the k = ⌈ratio · n⌉ elements of largest magnitude, and their indices
    D(C) = these at their places, zero elsewhere

The error is exactly what was not sent; an element that is always small is sent once it has added up to a large one.
"""

from __future__ import annotations

import math

import torch

from hora.errors import UsageError
from hora.torch.compression.feedback import GatheredFeedback

__all__ = ["TopK"]


class TopK(GatheredFeedback):
    """Send the ``ratio`` of each gradient's elements that are largest.

    >>> TopK(ratio=0.05)
    TopK(ratio=0.05)
    """

    suffix = "topk"

    def __init__(self, ratio: float = 0.01, smallest: int = 4096) -> None:
        super().__init__(smallest)
        if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 < ratio <= 1:
            raise UsageError(
                f"TopK: ratio={ratio!r}. It is the share of elements to send: 0 would send nothing, ever, and more than"
                " 1 is more than there are. Give a number above 0 and up to 1, such as 0.01."
            )
        self.ratio = float(ratio)

    def __repr__(self) -> str:
        return f"TopK(ratio={self.ratio:g})"

    def count(self, n: int) -> int:
        """How many of ``n`` elements are sent."""
        return min(n, math.ceil(self.ratio * n))

    def pays(self, gradient: torch.Tensor, steps: int) -> bool:
        n = gradient.numel()
        sent = self.count(n) * (_index_type(n).itemsize + max(4, gradient.itemsize))
        return sent < n * gradient.itemsize

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        places = x.abs().topk(self.count(len(x)), sorted=False).indices
        return torch.cat([places.to(_index_type(len(x))).view(torch.uint8), x[places].view(torch.uint8)])

    def add(self, code: torch.Tensor, total: torch.Tensor, sign: int = 1) -> None:
        index_type = _index_type(len(total))
        border = self.count(len(total)) * index_type.itemsize
        # Copies, because a number of several bytes must lie at a multiple of its size to be read.
        places, values = code[:border].clone().view(index_type), code[border:].clone().view(total.dtype)
        total.index_add_(0, places, values, alpha=sign)  # each place once: no order to differ in


def _index_type(n: int) -> torch.dtype:
    return torch.int32 if n <= torch.iinfo(torch.int32).max else torch.int64
