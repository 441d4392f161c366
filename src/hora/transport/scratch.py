"""Memory that a mover uses again and again, and buffers packed into it one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hora.transport.arithmetic import Array, bytes_of
from hora.types import Buffer

__all__ = ["Scratch", "unpack"]


class Scratch:
    """Named pieces of memory, each as large as was ever needed. One thread at a time.

    >>> scratch = Scratch()
    >>> scratch.take("received", 3).size, scratch.take("received", 2).size
    (3, 2)
    """

    def __init__(self) -> None:
        self._memory: dict[str, Array] = {}

    def take(self, name: str, nbytes: int) -> Array:
        """That many bytes; what they held when the name was taken last may still be there."""
        if name not in self._memory or self._memory[name].size < nbytes:
            self._memory[name] = np.empty(nbytes, dtype="uint8")
        return self._memory[name][:nbytes]

    def pack(self, buffers: Sequence[Buffer], padded: int = 0) -> Array:
        """The buffers' bytes in a row, with zeros up to ``padded``."""
        total = sum(buffer.nbytes for buffer in buffers)
        packed = self.take("packed", max(total, padded))
        low = 0
        for buffer in buffers:
            packed[low : low + buffer.nbytes] = bytes_of(buffer)
            low += buffer.nbytes
        packed[total:] = 0
        return packed


def unpack(packed: Array, targets: Sequence[Buffer]) -> None:
    """The reverse of ``pack``."""
    low = 0
    for target in targets:
        bytes_of(target)[:] = packed[low : low + target.nbytes]
        low += target.nbytes
