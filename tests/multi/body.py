"""What a multi-rank test body is, and where all of them are.

A body is a function ``f(hvd, rank, size)`` that every rank of a crew runs at the same time; it fails if any rank
raises. Bodies live in ``tests/multi/bodies``, one file a subject, and run unchanged at every size and on every
transport; those of the front-end, which are long, at every size on some transport, and on every transport at some size.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

Function = Callable[[ModuleType, int, int], None]

SIZES = (1, 2, 3, 4)
# By transport: the sizes of bodies that only use collectives which other bodies try everywhere, and of those others.
FRONT_END_SIZES = {"shm": (1, 2, 3), "gloo": (2,), "shm+tcp": (2,), "shm+ucx": (), "shm+gloo": ()}
ALL_SIZES = {"shm": SIZES, "gloo": (2, 3), "shm+tcp": (2, 4), "shm+ucx": (3,), "shm+gloo": (3,)}
_FRONT_END = (
    "adasum_optimizer", "compression", "guards", "objects", "optimizer", "optimizer_beside", "optimizer_guarded",
    "optimizer_uneven", "summary", "sync_batch_norm",
)  # fmt: skip


@dataclass(frozen=True)
class Body:
    """One body: its name (``allreduce.every_shape``) and where it makes sense."""

    name: str
    function: Function
    sizes: tuple[int, ...]
    once: bool  # on shared memory only

    def runs(self, transport: str, size: int) -> bool:
        """Whether it is tried there."""
        subject = self.name.partition(".")[0]
        layouts = FRONT_END_SIZES if subject in _FRONT_END else ALL_SIZES
        return size in self.sizes and size in layouts[transport] and (transport == "shm" or not self.once)


_bodies: dict[str, Body] = {}


def body(*, sizes: tuple[int, ...] = SIZES, once: bool = False) -> Callable[[Function], Function]:
    """Mark a function as a body: ``@body()``, or ``@body(sizes=(2, 4))``. One that is long, and to which the transport
    cannot matter, is ``once``."""

    def mark(function: Function) -> Function:
        name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
        _bodies[name] = Body(name, function, sizes, once)
        return function

    return mark


def all_bodies() -> dict[str, Body]:
    """Every body by its name."""
    for path in sorted((Path(__file__).parent / "bodies").glob("[a-z]*.py")):
        importlib.import_module(f"tests.multi.bodies.{path.stem}")
    return dict(_bodies)
