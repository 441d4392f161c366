"""OneBit: a sign for every element, one magnitude for all of them.

::

    C(x) = the signs of x, one bit each, and s = mean |x|
    D(C) = s where x ≥ 0, −s elsewhere

s is the magnitude that leaves the smallest error. Eight planes of bits lie over one another in the bytes: byte j has
the signs of elements j, j + w, j + 2w, … for a width w = ⌈n / 8⌉, so that packing is eight operations on long vectors.
"""

from __future__ import annotations

import torch

from hora.torch.compression.feedback import GatheredFeedback

__all__ = ["OneBit"]


class OneBit(GatheredFeedback):
    """Send one bit an element.

    >>> OneBit()
    OneBit()
    """

    suffix = "onebit"

    def __repr__(self) -> str:
        return "OneBit()"

    def pays(self, gradient: torch.Tensor, steps: int) -> bool:
        return 8 + -(-gradient.numel() // 8) < gradient.numel() * gradient.itemsize

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        scale = torch.linalg.vector_norm(x, 1).div_(len(x)).reshape(1)
        return torch.cat([scale.view(torch.uint8), pack(x >= 0)])

    def add(self, code: torch.Tensor, total: torch.Tensor, sign: int = 1) -> None:
        border = total.itemsize
        # A copy, because a number of several bytes must lie at a multiple of its size to be read.
        scale = code[:border].clone().view(total.dtype).mul_(sign)
        total.add_(torch.where(unpack(code[border:], len(total)), scale, -scale))


def pack(bits: torch.Tensor) -> torch.Tensor:
    """Eight bits to a byte.

    >>> pack(torch.tensor([True, False, True])).tolist()
    [5]
    """
    width = -(-len(bits) // 8)
    planes = torch.zeros(8 * width, dtype=torch.uint8, device=bits.device)
    planes[: len(bits)] = bits
    packed = torch.zeros(width, dtype=torch.uint8, device=bits.device)
    for place, plane in enumerate(planes.view(8, width)):
        packed |= plane << place
    return packed


def unpack(packed: torch.Tensor, count: int) -> torch.Tensor:
    """The bits again.

    >>> unpack(torch.tensor([5], dtype=torch.uint8), 3).tolist()
    [True, False, True]
    """
    planes = torch.stack([packed >> place for place in range(8)]).bitwise_and_(1)
    return planes.view(torch.bool).view(-1)[:count]
