"""Operations of the table: a request as plans of the C core, what is under way of it, and what came of that.

A group that is larger than a place in the table is several plans, its parts. They are submitted together and fail
together.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hora.engine.backend import Operation, OperationOutcome, UnderWay
from hora.engine.request import Request
from hora.engine.tablefault import Status
from hora.errors import HoraError
from hora.types import Buffer, Kind

if TYPE_CHECKING:
    from hora.engine.table import TableBackend

__all__ = ["TableOperation", "TableTicket", "adopt"]

_OK, _PENDING = int(Status.OK), int(Status.PENDING)  # plain numbers: they are compared for every operation
_BUSY = -_PENDING  # the table's lock was not to be had: ask again, for Ctrl-C acts in between
_SLICE_US = 200_000  # how long a wait stays in C before Python may act on Ctrl-C
_MOST_SEGMENTS = 4096  # core.h: MAX_SEGMENTS; a larger group is submitted in parts
_MOST_GATHERED = 256  # core.h: MAX_GATHERED
_NOTHING = OperationOutcome()


class TableOperation(Operation):
    """One request, planned. Each start is one call into the core; ``run`` is one altogether."""

    __slots__ = ("_again", "_backend", "_gathers", "_part", "_plan", "_plans", "_ready", "request")

    def __init__(self, backend: TableBackend, request: Request) -> None:
        self._backend, self.request = backend, request
        self._plans: list[int] = []
        self._gathers = request.kind is Kind.ALLGATHER or request.kind is Kind.ALLTOALL
        self._part = _MOST_GATHERED if request.kind is Kind.ALLGATHER else _MOST_SEGMENTS
        for at in range(0, max(1, len(request.segments)), self._part):  # all of them, before peers hear of any
            self._plans.append(backend.plan(request, at, at + self._part))
        self._plan = self._plans[0]
        self._ready: Any = None  # what the core carries out in one call
        self._again = backend._lib.again

    def start(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> UnderWay[OperationOutcome]:
        if len(self._plans) == 1:
            return self._submit(self._plan, inputs, outputs)
        parts: list[TableTicket] = []
        try:
            # The first part last: when its round is over, everybody has submitted all parts. If it fails, all fail with
            # it in the same moment, and none is still to come that would meet the next operation of this name.
            for place, plan in reversed(list(enumerate(self._plans))):
                here = slice(place * self._part, (place + 1) * self._part)
                parts.insert(0, self._submit(plan, inputs[here], outputs[here]))
        except BaseException:
            _let_go(parts, withdraw=True)
            raise
        return _Parts(self.request, parts, self._part)

    def _submit(self, plan: int, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> TableTicket:
        meta, n_meta, n = None, 0, len(inputs)
        if self._gathers:
            numbers = self._numbers(inputs)
            meta, n_meta = (ctypes.c_int64 * len(numbers))(*numbers), len(numbers)
        from_ = (ctypes.c_void_p * n)(*[b.address for b in inputs])
        to = (ctypes.c_void_p * n)(*[b.address for b in outputs]) if outputs else None
        backend = self._backend
        while (number := backend._lib.submit(backend._core, plan, from_, to, meta, n_meta)) == _BUSY:
            pass
        if number < 0:
            backend._raise(-number, self.request, None)
        return TableTicket(self, number, (inputs, outputs), n)

    def _numbers(self, inputs: Sequence[Buffer]) -> list[int]:
        """Of an allgather, the bytes of each tensor; of an alltoall, those for each member."""
        if self.request.kind is Kind.ALLGATHER:
            return [buffer.nbytes for buffer in inputs]
        assert self.request.splits is not None
        row_bytes = inputs[0].nbytes // max(1, inputs[0].shape[0])
        return [rows * row_bytes for rows in self.request.splits]

    def start_at(self, address: int, owner: object) -> TableTicket:
        backend = self._backend
        while (number := backend._lib.submit_one(backend._core, self._plan, address, address)) == _BUSY:
            pass
        if number < 0:
            backend._raise(-number, self.request, None)
        return TableTicket(self, number, owner)

    def run(self, address: int, owner: object) -> None:
        if code := self._again(self._ready, address):
            self._finish(code, address, owner)

    def _finish(self, code: int, address: int, owner: object) -> None:
        """What the core could not finish at once: wait on, or raise. The code is explained in native/hora.h."""
        if self._ready is None:
            self._ready = self._backend._lib.ready(self._backend._core, self._plan)
            if self._ready is None:  # no room; or closed, which the ordinary way says
                self.start_at(address, owner).wait()
            else:
                self.run(address, owner)
            return
        while code >> 62 and code & 0xFF == _PENDING:  # the table's lock was not to be had
            code = self._again(self._ready, address)
        status, number = code & 0xFF, code >> 8
        if code >> 62:
            self._backend._raise(status, self.request, None)  # it was refused: there is no ticket
        ticket = TableTicket(self, number, owner)
        if status == _PENDING:
            ticket.wait()
        else:
            ticket.conclude(status)

    def __del__(self) -> None:
        for plan in self._plans:
            self._backend.drop_plan(plan)


class TableTicket(UnderWay[OperationOutcome]):
    """A submission, and what it keeps alive."""

    __slots__ = ("_backend", "_kept", "_operation", "_segments", "number", "request")

    def __init__(self, operation: TableOperation, number: int, kept: object, segments: int = 1) -> None:
        self._operation, self.number, self._kept, self._segments = operation, number, kept, segments
        self.request, self._backend = operation.request, operation._backend

    def done(self) -> bool:
        return bool(self._backend._lib.done(self._backend._core, self.number))

    def wait(self) -> OperationOutcome:
        backend, number, gathers = self._backend, self.number, self._operation._gathers
        lib, core = backend._lib, backend._core
        wait = lib.wait if gathers else lib.finish
        try:
            while (status := wait(core, number, _SLICE_US)) == _PENDING:
                pass
        except BaseException:  # Ctrl-C: the operation goes on without us
            lib.unblock(core)
            self.abandon()
            raise
        return _NOTHING if status == _OK and not gathers else self.conclude(status)

    def conclude(self, status: int) -> OperationOutcome:
        """Turn the core's verdict into an outcome or an exception, and let the ticket go."""
        backend, number = self._backend, self.number
        try:
            if status == Status.SUSPICIOUS:
                backend.warn_about_lines(number)
            elif status not in (_OK, Status.NOT_FINITE):
                if status == Status.ABORTED:
                    backend.abandoned.append(self)
                backend._raise(status, self.request, number)
            if self._operation._gathers:
                return self._take()
            return _NOTHING if status == _OK else OperationOutcome(not_finite=backend.not_finite(number))
        finally:
            backend._lib.release(backend._core, number)

    def _take(self) -> OperationOutcome:
        backend, members = self._backend, len(self.request.members)
        memory, received = [], []
        for segment in range(self._segments):
            sizes = (ctypes.c_int64 * members)()
            address = backend._lib.take(backend._core, self.number, segment, sizes)
            if not address:
                backend._raise(Status.CLOSED, self.request, None)
            received.append(tuple(sizes))
            memory.append(adopt(backend._lib.free, address, sum(sizes)))
        return OperationOutcome(tuple(memory), tuple(received))

    def abandon(self) -> None:
        """Nobody here will wait for it; the core may still touch its buffers."""
        self._backend.abandoned.append(self)
        self._backend._lib.release(self._backend._core, self.number)

    def withdraw(self) -> None:
        """Fail it on all ranks, if somebody is still missing."""
        while self._backend._lib.withdraw(self._backend._core, self.number) == _PENDING:
            pass


class _Parts(UnderWay[OperationOutcome]):
    """A group of more than ``most`` tensors: its parts are submissions, and itself is none."""

    __slots__ = ("_most", "_parts", "request")

    def __init__(self, request: Request, parts: Sequence[TableTicket], most: int) -> None:
        self.request, self._parts, self._most = request, parts, most

    def done(self) -> bool:
        return all(part.done() for part in self._parts)

    def wait(self) -> OperationOutcome:
        outcomes: list[OperationOutcome] = []
        try:
            for part in self._parts:
                outcomes.append(part.wait())
        except BaseException as error:  # if the group has failed, nobody is to wait for its other parts
            _let_go(self._parts[len(outcomes) + 1 :], withdraw=isinstance(error, HoraError))
            raise
        return OperationOutcome(
            tuple(memory for outcome in outcomes for memory in outcome.memory),
            tuple(received for outcome in outcomes for received in outcome.received),
            not_finite=tuple(
                found._replace(segment=found.segment + self._most * place)
                for place, outcome in enumerate(outcomes)
                for found in outcome.not_finite
            ),
        )


def _let_go(parts: Sequence[TableTicket], withdraw: bool) -> None:
    """Nobody here will wait for these; they go on without us, or fail on all ranks if they are withdrawn."""
    for part in parts:
        if withdraw:
            part.withdraw()
        part.abandon()


def adopt(free: Any, address: int, nbytes: int) -> Any:
    """A writable object with the buffer protocol over ``nbytes`` at ``address``; ``free`` is called when it goes."""
    array = (ctypes.c_char * nbytes).from_address(address)
    weakref.finalize(array, free, address).atexit = False
    return array
