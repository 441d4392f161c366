"""The backend of one host: agreement in a table in shared memory, movement by the C core.

What happens per operation in steady state happens in the core, without the GIL: this module turns requests into plans
(once), plans into tickets, and the core's verdicts into exceptions.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import logging
import os
import struct
import time
import weakref
from collections.abc import Sequence
from typing import Any, NoReturn

import msgspec

from hora.config.settings import Settings
from hora.engine.backend import Event, NotFinite, Outcome, Pending, Snapshot, What
from hora.engine.explain import compact_ranks, suspicious_lines
from hora.engine.line import Line
from hora.engine.request import Request, Segment
from hora.engine.tablefault import TEXT_BYTES, Failure, Faults, Status
from hora.engine.tableticket import GroupTicket, Immediate, TableTicket
from hora.engine.tableview import Place, describe, parse_snapshot, process_state
from hora.errors import (
    HoraError,
    HorovodInternalError,
    ShutDownError,
    UsageError,
)
from hora.transport import shm
from hora.transport.base import Buffer, Kind
from hora.wire.frame import WireError
from hora.wire.messages import Bye, Peer

__all__ = ["GroupTicket", "Immediate", "TableBackend", "TableTicket"]

_log = logging.getLogger("hora")

_NOTHING = Outcome()
_OK, _PENDING = int(Status.OK), int(Status.PENDING)  # plain numbers: they are compared for every operation
_BUSY = -_PENDING  # the table's lock was not to be had: ask again, for Ctrl-C acts in between
_SLICE_US = 200_000  # how long a wait stays in C before Python may act on Ctrl-C
_LEAVE_S = 600.0  # how long to wait for a lock that another rank holds, if nothing says how long
_MOST_SEGMENTS, _MOST_GATHERED = 4096, 256  # MAX_SEGMENTS, MAX_META: a larger group is submitted in parts


class TableBackend:
    """See ``engine.backend.Backend``. ``line`` leads to the hub; a worker that is alone has none."""

    finds_not_finite = True  # outcomes of allreduces name who brought inf or nan

    def __init__(
        self,
        fd: int,
        rank: int,
        peers: Sequence[Peer],
        settings: Settings,
        generation: int = 1,
        line: Line | None = None,
    ) -> None:
        self.rank, self.peers, self._settings = rank, tuple(peers), settings
        self._generation, self._line = generation, line
        self._lib = lib = shm.load()
        here = peers[rank].host
        pids = [peer.pid if peer.host == here else 0 for peer in peers]  # 0: another host's
        self._core = lib.open(
            fd, rank, shm.spin_us(settings, filter(None, pids)), round(settings.cycle_time_ms * 1000),
            settings.fusion_bytes, settings.cache_capacity, int(settings.disable_group_fusion),
        )  # fmt: skip
        if not self._core:
            raise HorovodInternalError("the shared memory handed to this worker is not Hora's, or of another version.")
        if (found := lib.generation(self._core)) != generation:
            lib.close(self._core)
            raise ShutDownError(f"the shared memory is of generation {found}, this worker is of {generation}. End it.")
        if settings.thread_affinity:
            cpu = settings.thread_affinity[rank % len(settings.thread_affinity)]
            if error := lib.pin(self._core, cpu):
                _log.warning(
                    "THREAD_AFFINITY: the background thread cannot run on processor %d: %s", cpu, os.strerror(error)
                )
        if error := lib.watch(self._core, (ctypes.c_int32 * len(pids))(*pids)):
            lib.close(self._core)
            raise OSError(error, os.strerror(error))
        self._faults = Faults(lib, self._core, rank, self.peers)
        self._plans: dict[tuple[int, int], tuple[Request, int]] = {}
        self._planned: dict[int, Request] = {}  # by the core's number
        self._leaving: list[int] = []  # plans that are wanted no more, but whose events have not been read
        self._tracing = False
        self._sets: dict[tuple[int, ...], int] = {}
        self._warned: set[frozenset[str]] = set()
        self._abandoned: list[object] = []  # buffers that the core may still touch
        self.segment: shm.Segment | None = None  # if this rank made it: until all have opened it

    # ---- operations ----

    def submit(self, request: Request, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> TableTicket:
        most = _MOST_GATHERED if request.kind is Kind.ALLGATHER else _MOST_SEGMENTS
        if len(inputs) <= most:
            return self._submit(request, self.plan(request), inputs, outputs)
        starts = range(0, len(inputs), most)
        plans = [self.plan(request, slice(at, at + most)) for at in starts]  # all of them, before peers hear of any
        parts: list[TableTicket] = []
        try:
            # The first part last: when its round is over, everybody has submitted all parts. If it fails, all fail with
            # it in the same moment, and none is still to come that would meet the next operation of this name.
            for at, plan in zip(reversed(starts), reversed(plans), strict=True):
                parts.insert(0, self._submit(request, plan, inputs[at : at + most], outputs[at : at + most]))
        except BaseException:
            self._let_go(parts, withdraw=True)
            raise
        return GroupTicket(request, parts)

    def _submit(self, request: Request, plan: int, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> TableTicket:
        meta, count = None, 0
        if request.kind is Kind.ALLGATHER:
            meta, count = (ctypes.c_int64 * len(inputs))(*(b.nbytes for b in inputs)), len(inputs)
        elif request.kind is Kind.ALLTOALL:
            assert request.splits is not None
            row_bytes = inputs[0].nbytes // max(1, inputs[0].shape[0])
            count = len(request.splits)
            meta = (ctypes.c_int64 * count)(*(rows * row_bytes for rows in request.splits))
        n = len(inputs)
        from_ = (ctypes.c_void_p * n)(*(b.address for b in inputs))
        to = (ctypes.c_void_p * n)(*(b.address for b in outputs)) if outputs else None
        while (number := self._lib.submit(self._core, plan, from_, to, meta, count)) == _BUSY:
            pass
        if number < 0:
            self._raise(-number, request, None)
        return TableTicket(request, number, (inputs, outputs), n)

    def done(self, ticket: TableTicket) -> bool:
        if isinstance(ticket, GroupTicket):
            return all(map(self.done, ticket.parts))
        return bool(self._lib.done(self._core, ticket.number))

    def wait(self, ticket: TableTicket) -> Outcome:
        if isinstance(ticket, GroupTicket):
            return self._wait_for_all(ticket)
        lib, core, number = self._lib, self._core, ticket.number
        gathers = ticket.request.kind in (Kind.ALLGATHER, Kind.ALLTOALL)
        wait = lib.wait if gathers else lib.finish
        try:
            while (status := wait(core, number, _SLICE_US)) == _PENDING:
                pass
        except BaseException:  # Ctrl-C: the operation goes on without us
            lib.unblock(core)
            self._abandoned.append(ticket)
            lib.release(core, number)
            raise
        if status == _OK and not gathers:
            return _NOTHING
        return self.conclude(ticket, status)

    def _wait_for_all(self, group: GroupTicket) -> Outcome:
        outcomes: list[Outcome] = []
        try:
            for part in group.parts:
                outcomes.append(self.wait(part))
        except BaseException as error:  # if the group has failed, nobody is to wait for its other parts
            self._let_go(group.parts[len(outcomes) + 1 :], withdraw=isinstance(error, HoraError))
            raise
        most = _MOST_GATHERED if group.request.kind is Kind.ALLGATHER else _MOST_SEGMENTS
        return Outcome(
            tuple(memory for outcome in outcomes for memory in outcome.memory),
            tuple(received for outcome in outcomes for received in outcome.received),
            not_finite=tuple(
                found._replace(segment=found.segment + most * part)
                for part, outcome in enumerate(outcomes)
                for found in outcome.not_finite
            ),
        )

    def _let_go(self, parts: Sequence[TableTicket], withdraw: bool) -> None:
        """Nobody here will wait for these; they go on without us, or fail on all ranks if they are withdrawn."""
        for part in parts:
            while withdraw and self._lib.withdraw(self._core, part.number) == _PENDING:
                pass
            self._abandoned.append(part)
            self._lib.release(self._core, part.number)

    def conclude(self, ticket: TableTicket, status: int) -> Outcome:
        """Turn the core's verdict on a finished ticket into an outcome or an exception, and let the ticket go."""
        lib, core, number, request = self._lib, self._core, ticket.number, ticket.request
        try:
            if status == Status.SUSPICIOUS:
                self._warn_about_lines(self._faults.said(lib.failure(core, number)))
            elif status not in (_OK, Status.NOT_FINITE):
                if status == Status.ABORTED:
                    self._abandoned.append(ticket)
                self._raise(status, request, number)
            if request.kind is Kind.ALLGATHER or request.kind is Kind.ALLTOALL:
                return self._take(number, request, ticket.segments)
            return _NOTHING if status == _OK else Outcome(not_finite=self._not_finite(number))
        finally:
            lib.release(core, number)

    def immediate(self, request: Request) -> Immediate:
        """A function that carries this request out at once, for operations that are repeated and must cost little."""
        return Immediate(self, request)

    def _take(self, number: int, request: Request, segments: int) -> Outcome:
        members = len(request.members)
        memory, received = [], []
        for segment in range(segments):
            sizes = (ctypes.c_int64 * members)()
            address = self._lib.take(self._core, number, segment, sizes)
            if not address:
                self._raise(Status.CLOSED, request, None)
            received.append(tuple(sizes))
            memory.append(_adopt(self._lib.free, address, sum(sizes)))
        return Outcome(tuple(memory), tuple(received))

    def _not_finite(self, number: int) -> tuple[NotFinite, ...]:
        size = len(self.peers)
        places = (ctypes.c_uint64 * (size + 1))()
        if not self._lib.not_finite(self._core, number, places):
            return ()
        return tuple(
            NotFinite(rank if rank < size else -1, place - 1 >> 48, (place - 1 & (1 << 48) - 1) >> 1, not place & 1)
            for rank, place in enumerate(places)
            if place
        )

    def join(self, average_active: bool) -> int:
        last, status = ctypes.c_int(), _PENDING
        try:
            while (joined := self._lib.join(self._core, int(average_active))) == _BUSY:
                pass
            if joined < 0:
                self._raise(-joined, None, None)
            while status == _PENDING:
                status = self._lib.join_wait(self._core, joined, _SLICE_US, ctypes.byref(last))
        except BaseException:
            self._lib.unblock(self._core)
            raise
        if status == Status.LEFT and (gone := self._faults.who_left()):
            raise ShutDownError(f"{gone} shut down while this rank waited in join() for all to join.")
        if status != _OK:
            self._raise(status, None, None)
        return last.value

    # ---- plans ----

    def plan(self, request: Request, part: slice | None = None) -> int:
        """The core's number for this request, or for a part of its segments, made on first use. Requests are told apart
        by identity."""
        key = (id(request), part.start if part else 0)
        known = self._plans.get(key)
        if known is not None:
            return known[1]
        if len(self._plans) >= 4 * max(self._settings.cache_capacity, 256):
            for old in list(self._plans)[: len(self._plans) // 2]:
                self._drop_plan(self._plans.pop(old)[1])
        number = self._make_plan(request, part)
        self._plans[key] = (request, number)
        return number

    def _make_plan(self, request: Request, part: slice | None = None) -> int:
        """Each part is an operation of its own, that says of itself what the whole request says. The core knows parts
        that fail together by the second half of their key."""
        key0, key1 = _key(request.name, request.members)
        if part and part.start:
            key0, key1 = _key(request.name, request.members, part.start)[0], key0
        segments = request.segments[part] if part else request.segments
        line = int.from_bytes(hashlib.blake2b(request.line.encode(), digest_size=8).digest(), "little")
        fingerprint = request.fingerprint()
        if self._settings.strict and not request.named:
            fingerprint ^= line
        numbers = [n for s in segments for n in (int(s.dtype), s.count, _row(s))]
        description = describe(request)
        number = self._lib.plan(
            self._core, key0, key1, self._set(request.members, request), request.kind, request.op, request.root,
            request.prescale, request.postscale, fingerprint, line, int(not request.named),
            -1 if request.wire is None else int(request.wire), len(segments),
            (ctypes.c_uint64 * len(numbers))(*numbers), description, len(description),
        )  # fmt: skip
        if number < 0:
            self._raise(-number, request, None)
        self._planned[number] = request
        return int(number)

    def _drop_plan(self, number: int) -> None:
        if number >= 0 and self._tracing:
            self._leaving.append(number)
        elif number >= 0:
            self._forget_plan(number)

    def _forget_plan(self, number: int) -> None:
        if self._core is not None:
            self._planned.pop(number, None)
            self._lib.drop(self._core, number)

    def _drop_leaving(self, numbers: Sequence[int]) -> None:
        del self._leaving[: len(numbers)]  # others may have been added meanwhile
        for number in numbers:
            self._forget_plan(number)

    def _warn_about_lines(self, said: dict[int, Request]) -> None:
        """Once for each pair of lines, and on one rank."""
        lines = frozenset(request.line for request in said.values())
        text = suspicious_lines(said)
        if text and lines not in self._warned and self.rank == min(said):
            self._warned.add(lines)
            _log.warning(text)

    def _set(self, members: tuple[int, ...], request: Request | None = None) -> int:
        if (known := self._sets.get(members)) is None:
            ranks = (ctypes.c_int32 * len(members))(*members)
            while (number := self._lib.set(self._core, ranks, len(members))) == _BUSY:
                pass
            if number == -Status.TOO_MANY:
                raise UsageError(
                    "there is room for 16384 different process sets in one job, and this would be one more: "
                    f"{compact_ranks(members)}. Sets with the same ranks count once; use fewer different ones."
                )
            if number < 0:
                self._raise(-number, request, None)
            known = self._sets[members] = number
        return known

    # ---- what went wrong ----

    def _raise(self, status: int, request: Request | None, number: int | None) -> NoReturn:
        raise self._faults.error(status, request, number)

    def abort(self, status: str) -> None:
        """End every wait, here and on all peers: what they work on cannot be finished. For any thread."""
        if self._core:
            self._faults.ended_here = True
            self._lib.mark_dead(self._core, self.rank, status.encode())

    # ---- reports ----

    def waiting(self) -> bool:
        return bool(self._lib.waiting(self._core)) or self._lib.dead(self._core) >= 0

    def snapshot(self) -> Snapshot:
        return self._snapshot()[0]

    def _snapshot(self) -> tuple[Snapshot, dict[tuple[str, tuple[int, ...]], Place]]:
        room = 1 << 16
        while (length := self._lib.snapshot(self._core, buffer := ctypes.create_string_buffer(room), room)) < 0:
            room = 2 * -length
        return parse_snapshot(buffer.raw[:length])

    def fail(self, pending: Pending, kind: str, text: str) -> None:
        if self._lib.dead(self._core) >= 0:
            return  # that ends all waits, and is what they are to say
        entries = self._snapshot()[1]
        found = entries.get((pending.name, pending.members))
        if found is not None:
            code = {"deadlock": Failure.DEADLOCK, "mismatch": Failure.MISMATCH}.get(kind, Failure.STALLED)
            self._lib.fail(self._core, *found, code, text.encode()[: TEXT_BYTES - 1])

    def python_stack(self, rank: int, timeout_s: float) -> str:
        state = process_state(self.peers[rank].pid)
        if state == "stopped":
            return f"(rank {rank} is stopped by a signal; continue it with kill -CONT {self.peers[rank].pid})"
        assert self._line is not None, "a worker that is alone waits for nobody"
        return self._line.python_stack(self._generation, rank, timeout_s)

    def say(self, text: str) -> None:
        """Leave last words for the others, such as the exception that ends this process."""
        self._lib.say(self._core, self.rank, text.encode()[-TEXT_BYTES + 1 :])

    # ---- memory that peers can reduce in place ----

    def allocate(self, nbytes: int) -> Any:
        """Writable memory that all workers of the host share, or None if there is no room."""
        address = self._lib.alloc(self._core, nbytes)
        if not address:
            return None
        lib, core = self._lib, self._core
        return _adopt(lambda a: lib.dealloc(core, a) if self._core else None, address, nbytes)

    def shares(self, address: int, nbytes: int) -> bool:
        """Whether peers can reach this memory."""
        return bool(self._lib.shares(self._core, address, nbytes))

    def serve(self, nbytes: int) -> bool:
        """Let tensors of exactly this size be born in such memory, if ``hora run`` preloaded its allocator."""
        return bool(self._lib.serve(nbytes))

    def help(self) -> None:
        """Do what was agreed on and can be done in place, without waiting for anybody."""
        self._lib.help(self._core)

    # ---- timeline ----

    def trace(self, on: bool) -> None:
        self._lib.trace(self._core, int(on))
        self._tracing = on
        if not on:
            self._drop_leaving(tuple(self._leaving))

    def events(self) -> list[Event]:
        """What happened since the last call."""
        leaving = tuple(self._leaving)
        buffer = ctypes.create_string_buffer(24 * 4096)
        found = []
        while n := self._lib.events(self._core, buffer, 4096):
            for time_ns, plan, what, rank, detail in struct.iter_unpack("<QIHHQ", buffer.raw[: 24 * n]):
                if (request := self._planned.get(plan)) is not None:
                    found.append(Event(time_ns, request, What(what), rank, detail))
        self._drop_leaving(leaving)
        return found

    # ---- the end ----

    def give_up(self, rank: int, status: str) -> None:
        self._lib.mark_dead(self._core, rank, status.encode())

    def leave(self) -> None:
        deadline = time.monotonic() + (self._settings.stall_fail_s or _LEAVE_S)
        while self._lib.leave(self._core) == _PENDING:
            if time.monotonic() > deadline and (holder := self._lib.holder(self._core)) >= 0:
                self.give_up(holder, "it holds the lock of the table of operations, and does not let it go")
        if self._line is not None:
            with contextlib.suppress(WireError):
                self._line.send(Bye(self._generation))

    def close(self) -> None:
        if self._core:
            core, self._core = self._core, None
            self._lib.close(core)
            self._abandoned.clear()
            if self._line is not None:
                self._line.unsubscribe()


def _key(*named: object) -> tuple[int, int]:
    """What the table knows an operation by."""
    key0, key1 = struct.unpack("<QQ", hashlib.blake2b(msgspec.msgpack.encode(named), digest_size=16).digest())
    return key0, key1


def _adopt(free: Any, address: int, nbytes: int) -> Any:
    """A writable object with the buffer protocol over ``nbytes`` at ``address``; ``free`` is called when it goes."""
    array = (ctypes.c_char * nbytes).from_address(address)
    weakref.finalize(array, free, address).atexit = False
    return array


def _row(segment: Segment) -> int:
    """Elements in one step of dimension 0."""
    return segment.count // segment.shape[0] if segment.shape and segment.shape[0] else 1
