"""What the table hands out: tickets of submissions, and what carries one request out again and again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hora.engine.request import Request
from hora.engine.tablefault import Status

if TYPE_CHECKING:
    from hora.engine.table import TableBackend

__all__ = ["GroupTicket", "Immediate", "TableTicket"]

_PENDING = int(Status.PENDING)
_BUSY = -_PENDING  # the table's lock was not to be had: ask again


class TableTicket:
    """A submission, and what it keeps alive."""

    __slots__ = ("_kept", "number", "request", "segments")

    def __init__(self, request: Request, number: int, kept: object, segments: int = 1) -> None:
        self.request, self.number, self._kept, self.segments = request, number, kept, segments


class GroupTicket(TableTicket):
    """A group that is larger than a place in the table: its parts are submissions, and itself is none."""

    __slots__ = ("parts",)

    def __init__(self, request: Request, parts: Sequence[TableTicket]) -> None:
        super().__init__(request, -1, None)
        self.parts = parts


class Immediate:
    """Carries out one request of one tensor again and again, in place: one call into the core each time.

    ``again(ready, address)`` does it and is 0 if that went well; anything else goes to ``finish``, which waits on or
    raises. ``start`` is the same without waiting.
    """

    __slots__ = ("_backend", "_plan", "_request", "again", "ready")

    def __init__(self, backend: TableBackend, request: Request) -> None:
        self._backend, self._request, self._plan = backend, request, -1
        self._plan = backend._make_plan(request)
        self.again, self.ready = backend._lib.again, backend._lib.ready(backend._core, self._plan)
        if not self.ready:
            backend._raise(Status.FULL, request, None)

    def __call__(self, address: int) -> None:
        """Reduce the memory at this address; returns when done, or raises."""
        if code := self.again(self.ready, address):
            self.finish(code, address)

    def finish(self, code: int, address: int) -> None:
        """What the core could not finish at once: wait on, or raise."""
        while code >> 62 and code & 0xFF == _PENDING:  # the table's lock was not to be had
            code = self.again(self.ready, address)
        status, number = code & 0xFF, code >> 8
        if code >> 62:
            self._backend._raise(status, self._request, None)  # it was refused: there is no ticket
        ticket = TableTicket(self._request, number, None)
        if status == _PENDING:
            self._backend.wait(ticket)
        else:
            self._backend.conclude(ticket, status)

    def start(self, address: int, owner: object) -> TableTicket:
        """Begin it; ``owner`` keeps the memory alive meanwhile."""
        backend = self._backend
        while (number := backend._lib.submit_one(backend._core, self._plan, address, address)) == _BUSY:
            pass
        if number < 0:
            self._backend._raise(-number, self._request, None)
        return TableTicket(self._request, number, owner)

    def __del__(self) -> None:
        self._backend._drop_plan(self._plan)
