"""An operation under way: what a front-end holds between submitting a collective and having its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from hora.engine import handle
from hora.engine.backend import Outcome, Ticket
from hora.engine.core import Engine

__all__ = ["Started"]

T = TypeVar("T")
U = TypeVar("U")


class Started(NamedTuple, Generic[T]):
    """An operation under way, and what to make of its outcome."""

    engine: Engine
    ticket: Ticket
    finish: Callable[[Outcome], T]

    @property
    def name(self) -> str:
        """The full name that the engine gave it."""
        return self.ticket.request.name

    def result(self) -> T:
        """Wait for it on this thread."""
        return self.finish(self.engine.wait(self.ticket))

    def handle(self) -> int:
        """A number for ``poll`` and ``synchronize``."""
        return handle.new(self.engine, self.ticket, self.finish)

    def then(self, change: Callable[[T], U]) -> Started[U]:
        """The same operation with its result changed."""
        finish = self.finish
        return Started(self.engine, self.ticket, lambda outcome: change(finish(outcome)))
