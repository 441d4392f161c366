"""The backend of one host: agreement in a table in shared memory, movement by the C core.

What happens per operation in steady state happens in the core, without the GIL: this module opens the core, plans
requests for it and tells what it knows. ``engine.tableoperation`` has what is done with a plan.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import msgspec

from hora.config.settings import Settings
from hora.engine.backend import Backend, EventKind, NotFinite, Operation, OperationEvent, Pending, Snapshot
from hora.engine.explain import compact_ranks, suspicious_lines
from hora.engine.hub_connection import HubConnection
from hora.engine.request import Request, TensorSpec
from hora.engine.tablefault import TEXT_BYTES, FailureCode, Faults, Status
from hora.engine.tableoperation import TableOperation, adopt
from hora.engine.tableview import TablePosition, describe, parse_snapshot, process_state
from hora.errors import (
    HorovodInternalError,
    ShutDownError,
    UsageError,
)
from hora.transport import shm
from hora.wire.frame import WireError
from hora.wire.messages import Bye, Peer

__all__ = ["TableBackend"]

_log = logging.getLogger("hora")

_OK, _PENDING = int(Status.OK), int(Status.PENDING)  # plain numbers: they are compared for every operation
_BUSY = -_PENDING  # the table's lock was not to be had: ask again, for Ctrl-C acts in between
_SLICE_US = 200_000  # how long a wait stays in C before Python may act on Ctrl-C
_LEAVE_S = 600.0  # how long to wait for a lock that another rank holds, if nothing says how long


class TableBackend(Backend):
    """See ``engine.backend.Backend``. ``line`` leads to the hub; a worker that is alone has none."""

    finds_not_finite = True
    shares_memory = True

    def __init__(
        self,
        fd: int,
        rank: int,
        peers: Sequence[Peer],
        settings: Settings,
        generation: int = 1,
        line: HubConnection | None = None,
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
        self._planned: dict[int, Request] = {}  # by the core's number
        self._leaving: list[int] = []  # plans that are wanted no more, but whose events have not been read
        self._tracing = False
        self._sets: dict[tuple[int, ...], int] = {}
        self._warned: set[frozenset[str]] = set()
        self.abandoned: list[object] = []  # buffers that the core may still touch

    # ---- operations ----

    def prepare(self, request: Request) -> Operation:
        return TableOperation(self, request)

    def not_finite(self, number: int) -> tuple[NotFinite, ...]:
        """Ranks whose input contained the inf or nan in the result of a ticket."""
        size = len(self.peers)
        places = (ctypes.c_uint64 * (size + 1))()
        if not self._lib.not_finite(self._core, number, places):
            return ()
        return tuple(
            NotFinite(rank if rank < size else -1, place - 1 >> 48, (place - 1 & (1 << 48) - 1) >> 1, not place & 1)
            for rank, place in enumerate(places)
            if place
        )

    def join(self, average_active: bool, begun: Callable[[], None] = lambda: None) -> int:
        last, status = ctypes.c_int(), _PENDING
        try:
            while (joined := self._lib.join(self._core, int(average_active))) == _BUSY:
                pass
            if joined < 0:
                self._raise(-joined, None, None)
            begun()
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

    def plan(self, request: Request, start: int, end: int) -> int:
        """The core's number for these segments of a request; ``drop_plan`` gives it back.

        Each part of a request is an operation of its own, that says of itself what the whole request says. The core
        knows parts that fail together by the second half of their key.
        """
        key0, key1 = _key(request.name, request.members)
        if start:
            key0, key1 = _key(request.name, request.members, start)[0], key0
        segments, how = request.segments[start:end], request.how
        line = _hashed(request.line)
        fingerprint = request.fingerprint()
        if self._settings.strict and not request.named:
            fingerprint ^= line
        description = describe(request)
        number = self._lib.plan(
            self._core, key0, key1, self._set(request.members, request), request.kind, how.op, request.root,
            how.prescale, how.postscale, fingerprint, line, int(not request.named),
            -1 if how.wire is None else int(how.wire), len(segments),
            _forms(segments), description, len(description),
        )  # fmt: skip
        if number < 0:
            self._raise(-number, request, None)
        self._planned[number] = request
        return int(number)

    def drop_plan(self, number: int) -> None:
        """It is wanted no more; what is under way of it ends as it would have."""
        if self._tracing:
            self._leaving.append(number)
        else:
            self._forget_plan(number)

    def _forget_plan(self, number: int) -> None:
        if self._core is not None:
            self._planned.pop(number, None)
            self._lib.drop(self._core, number)

    def _drop_leaving(self, numbers: Sequence[int]) -> None:
        del self._leaving[: len(numbers)]  # others may have been added meanwhile
        for number in numbers:
            self._forget_plan(number)

    def warn_about_lines(self, number: int) -> None:
        """That ranks came to this ticket's operation from different lines: once for each pair, and on one rank."""
        said = self._faults.said(self._lib.failure(self._core, number))
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
                    "a job can have at most 16384 different process sets, and this would be one more: "
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

    def _snapshot(self) -> tuple[Snapshot, dict[tuple[str, tuple[int, ...]], TablePosition]]:
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
            code = {"deadlock": FailureCode.DEADLOCK, "mismatch": FailureCode.MISMATCH}.get(kind, FailureCode.STALLED)
            self._lib.fail(self._core, *found, code, text.encode()[: TEXT_BYTES - 1])

    def python_stack(self, rank: int, timeout_s: float) -> str:
        state = process_state(self.peers[rank].pid)
        if state == "stopped":
            return f"(rank {rank} is stopped by a signal; continue it with kill -CONT {self.peers[rank].pid})"
        assert self._line is not None, "a worker that is alone waits for nobody"
        return self._line.python_stack(self._generation, rank, timeout_s)

    def say(self, text: str) -> None:
        self._lib.say(self._core, self.rank, text.encode()[-TEXT_BYTES + 1 :])

    # ---- memory that peers can reduce in place ----

    def allocate(self, nbytes: int) -> Any:
        address = self._lib.alloc(self._core, nbytes)
        if not address:
            return None
        lib, core = self._lib, self._core
        return adopt(lambda a: lib.dealloc(core, a) if self._core else None, address, nbytes)

    def shares(self, address: int, nbytes: int) -> bool:
        return bool(self._lib.shares(self._core, address, nbytes))

    def serve(self, nbytes: int) -> bool:
        return bool(self._lib.serve(nbytes))

    def help(self) -> None:
        self._lib.help(self._core)

    # ---- timeline ----

    def trace(self, on: bool) -> None:
        self._lib.trace(self._core, int(on))
        self._tracing = on
        if not on:
            self._drop_leaving(tuple(self._leaving))

    def events(self) -> list[OperationEvent]:
        """What happened since the last call."""
        leaving = tuple(self._leaving)
        buffer = ctypes.create_string_buffer(24 * 4096)
        found = []
        while n := self._lib.events(self._core, buffer, 4096):
            for time_ns, plan, what, rank, detail in struct.iter_unpack("<QIHHQ", buffer.raw[: 24 * n]):
                if (request := self._planned.get(plan)) is not None:
                    found.append(OperationEvent(time_ns, request, EventKind(what), rank, detail))
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
            self.abandoned.clear()
            if self._line is not None:
                self._line.unsubscribe()


def _key(*named: object) -> tuple[int, int]:
    """What the table knows an operation by."""
    key0, key1 = struct.unpack("<QQ", hashlib.blake2b(msgspec.msgpack.encode(named), digest_size=16).digest())
    return key0, key1


@functools.lru_cache(maxsize=1024)
def _hashed(line: str) -> int:
    return int.from_bytes(hashlib.blake2b(line.encode(), digest_size=8).digest(), "little")


@functools.lru_cache(maxsize=256)
def _forms(segments: tuple[TensorSpec, ...]) -> ctypes.Array[ctypes.c_uint64]:
    """Element types and sizes, for the core to read."""
    numbers = [n for s in segments for n in (int(s.dtype), s.count, _row(s))]
    return (ctypes.c_uint64 * len(numbers))(*numbers)


def _row(segment: TensorSpec) -> int:
    """Elements in one step of dimension 0."""
    return segment.count // segment.shape[0] if segment.shape and segment.shape[0] else 1
