"""Sending a state from one rank to others: its structure as an object, its arrays as they lie in memory.

What is large never goes through pickle: an ``OutOfBand`` takes it out of the pickled bytes and moves it beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from hora.engine import session
from hora.engine.process_set import ProcessSet, global_process_set
from hora.ops import host
from hora.ops.call import Call
from hora.ops.objects import broadcast_bytes, pack, unpack
from hora.types import Kind

__all__ = ["ArraysOutOfBand", "OutOfBand", "send"]

_SMALL_BYTES = 1024


class OutOfBand(Protocol):
    """Keeps what is large out of pickled bytes, and moves it. A new one for every sending."""

    def persistent_id(self, value: object) -> Any:
        """What is pickled in place of ``value``; None for the value itself."""

    def persistent_load(self, recipe: Any) -> Any:
        """A place for what ``persistent_id`` took out, to be filled by ``move``."""

    def move(self, root: int, process_set: ProcessSet) -> None:
        """Bring what was taken out to the others."""


class ArraysOutOfBand:
    """Keeps numpy arrays apart."""

    def __init__(self) -> None:
        self.arrays: list[Any] = []
        self._places: dict[int, int] = {}

    def persistent_id(self, value: object) -> Any:
        if not isinstance(value, np.ndarray) or value.dtype.hasobject or value.nbytes < _SMALL_BYTES:
            return None
        place = self._places.setdefault(id(value), len(self.arrays))
        if place == len(self.arrays):
            self.arrays.append(value)
        return place, value.shape, value.dtype

    def persistent_load(self, recipe: Any) -> Any:
        place, shape, dtype = recipe
        if place == len(self.arrays):
            self.arrays.append(np.empty(shape, dtype))
        return self.arrays[place]

    def move(self, root: int, process_set: ProcessSet) -> None:
        is_root = session.engine().rank == root
        started = []
        for i, array in enumerate(self.arrays):
            flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            call = Call(Kind.BROADCAST, f"elastic.array.{i}", process_set, root=root)
            started.append((array, host.start(call, [flat])))
        for array, under_way in started:
            (received,) = under_way.wait().tensors
            if not is_root:
                array[...] = received.view(array.dtype).reshape(array.shape)


def send(value: object, root: int, ranks: Sequence[int], apart: OutOfBand) -> Any:
    """The root's value, on the root and on ``ranks``; None on others, who need not wait. All ranks call it, with the
    same
    ranks. If it cannot be pickled, all that take part raise."""
    engine = session.engine()
    members = sorted({root, *ranks})
    if engine.rank not in members:
        return None
    process_set = global_process_set
    if len(members) < engine.size:
        process_set = engine.process_sets.add(ProcessSet(members))
    try:
        is_root = engine.rank == root
        data, failure = pack(value, engine.key, root, apart.persistent_id) if is_root else (b"", None)
        data = broadcast_bytes(data, root, "elastic.state", process_set)
        if failure is not None:
            raise failure
        received = value if is_root else unpack(data, engine.key, root, apart.persistent_load)
        apart.move(root, process_set)
        return received
    finally:
        engine.process_sets.remove(process_set)
