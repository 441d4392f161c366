"""Int8: a whole number from −127 to 127 for every element, a scale for every chunk of them.

::

    C(x) = round(x / s), with s = max |x| / 127 for each ``chunk`` of elements
    D(C) = C · s

No element is off by more than half its chunk's scale, and the error feedback makes up for that.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from hora.torch.compression.feedback import GatheredFeedback, whole_number

__all__ = ["Int8"]


class Int8(GatheredFeedback):
    """Send one byte an element, and one scale for ``chunk`` of them.

    >>> Int8(chunk=256)
    Int8(chunk=256)
    """

    suffix = "int8"

    def __init__(self, chunk: int = 1024, smallest: int = 4096) -> None:
        super().__init__(smallest)
        self.chunk = whole_number("chunk", chunk, 1)

    def __repr__(self) -> str:
        return f"Int8(chunk={self.chunk})"

    def pays(self, gradient: torch.Tensor, steps: int) -> bool:
        n = gradient.numel()
        return n + -(-n // self.chunk) * max(4, gradient.itemsize) < n * gradient.itemsize

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        chunks = self._chunks(x)
        scales = chunks.abs().amax(1).div_(127)
        # A chunk of zeros has scale 0, and one with an inf or nan a scale that spoils whatever it is multiplied with.
        usable = torch.where((scales > 0) & scales.isfinite(), scales, 1)
        numbers = (chunks / usable[:, None]).round_().nan_to_num_(0, 127, -127).clamp_(-127, 127).to(torch.int8)
        return torch.cat([scales.view(torch.uint8), numbers.view(-1)[: len(x)].view(torch.uint8)])

    def add(self, code: torch.Tensor, total: torch.Tensor, sign: int = 1) -> None:
        border = -(-len(total) // self.chunk) * total.itemsize
        # A copy, because a number of several bytes must lie at a multiple of its size to be read.
        scales = code[:border].clone().view(total.dtype)
        numbers = self._chunks(code[border:].view(torch.int8).to(total.dtype))
        total.add_((numbers * scales[:, None]).view(-1)[: len(total)], alpha=sign)

    def _chunks(self, x: torch.Tensor) -> torch.Tensor:
        """One chunk a row, the last filled up with zeros."""
        missing = -len(x) % self.chunk
        return (functional.pad(x, (0, missing)) if missing else x).view(-1, self.chunk)
