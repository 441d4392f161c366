"""Handles: the integers that ``*_async`` functions return, and what is behind them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from hora.errors import UsageError

if TYPE_CHECKING:
    from hora.engine.backend import UnderWay

__all__ = ["new", "poll", "synchronize"]

_numbers = itertools.count(1)
_last = 0
_open: dict[int, UnderWay[Any]] = {}


def new(under_way: UnderWay[Any]) -> int:
    """A handle for an operation under way."""
    global _last
    _last = number = next(_numbers)
    _open[number] = under_way
    return number


def poll(handle: int) -> bool:
    """Whether the operation has finished, so that ``synchronize`` will not block."""
    found = _open.get(handle)
    if found is None:
        _check(handle)
        return True
    return found.done()


def synchronize(handle: int) -> Any:
    """Wait for an operation, release its handle and return its result, or raise its failure.

    None for a handle that was synchronized before, as Horovod has it.
    """
    found = _open.pop(handle, None)
    if found is None:
        _check(handle)
        return None
    return found.wait()


def _check(handle: int) -> None:
    if not isinstance(handle, int) or not 0 < handle <= _last:
        raise UsageError(f"{handle!r} is not a handle. Pass what an *_async function returned.")
