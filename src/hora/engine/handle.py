"""Handles: the integers that ``*_async`` functions return, and what is behind them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hora.errors import UsageError

if TYPE_CHECKING:
    from hora.engine.backend import Outcome, Ticket
    from hora.engine.core import Engine

__all__ = ["new", "poll", "synchronize"]

_numbers = itertools.count(1)
_last = 0
_open: dict[int, tuple[Engine, Ticket, Callable[[Outcome], Any]]] = {}


def new(engine: Engine, ticket: Ticket, finish: Callable[[Outcome], Any]) -> int:
    """A handle for an operation under way; ``finish`` makes its result from the outcome."""
    global _last
    _last = number = next(_numbers)
    _open[number] = (engine, ticket, finish)
    return number


def poll(handle: int) -> bool:
    """Whether the operation has finished, so that ``synchronize`` will not block."""
    found = _open.get(handle)
    if found is None:
        _check(handle)
        return True
    engine, ticket, _ = found
    return engine.done(ticket)


def synchronize(handle: int) -> Any:
    """Wait for an operation, release its handle and return its result, or raise its failure.

    None for a handle that was synchronized before, as Horovod has it.
    """
    found = _open.pop(handle, None)
    if found is None:
        _check(handle)
        return None
    engine, ticket, finish = found
    return finish(engine.wait(ticket))


def _check(handle: int) -> None:
    if not isinstance(handle, int) or not 0 < handle <= _last:
        raise UsageError(f"{handle!r} is not a handle. Pass what an *_async function returned.")
