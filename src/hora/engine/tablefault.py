"""What goes wrong in the table, in words: the core's error codes as exceptions that name ranks and source lines and say
what to change."""

from __future__ import annotations

import ctypes
import enum
import time
from collections.abc import Sequence
from typing import Any

from hora.engine.explain import (
    compact_ranks,
    explain_joined,
    explain_left,
    explain_mismatch,
    given_up,
    lost,
    suspicious_lines,
)
from hora.engine.request import Request
from hora.engine.tableview import DESCRIPTION_BYTES
from hora.errors import (
    DeadlockError,
    DuplicateNameError,
    HoraError,
    HorovodInternalError,
    MismatchError,
    PeerLostError,
    ShutDownError,
    StallError,
)
from hora.wire.messages import Peer

__all__ = ["TEXT_BYTES", "FailureCode", "Faults", "Status"]

TEXT_BYTES = 16 << 10  # core.h: TEXT_BYTES
_STATUS_BYTES = 256  # core.h: STATUS_BYTES
_ABSENT = 0  # core.h: ABSENT; this rank is absent once its side is closed
_GONE_CLEAN = 2  # core.h: GONE_CLEAN
_BROKEN = "a check inside Hora failed"  # how native/life.c begins
_LAST_WORDS_S = 0.3  # how long to wait for the launcher to say how a rank ended


class Status(enum.IntEnum):
    """What calls of the core answer."""

    # core.h: enum status
    OK = 0
    PENDING = 1
    FAILED = 2
    ABORTED = 3
    DUPLICATE = 4
    LEFT = 5
    FULL = 6
    SUSPICIOUS = 7
    NOT_FINITE = 8
    CLOSED = 9
    TOO_MANY = 10


class FailureCode(enum.IntEnum):
    """Why an operation failed."""

    # core.h: enum failure_code
    MISMATCH = 1
    JOINED = 2
    GONE = 3
    DEADLOCK = 4
    STALLED = 5
    NOTE = 6
    WITHDRAWN = 7


class Faults:
    """Reads what the core of this rank knows of a failure; also after it was closed, when it knows nothing."""

    def __init__(self, lib: Any, core: Any, rank: int, peers: Sequence[Peer]) -> None:
        self._lib, self._core, self._rank, self._peers = lib, core, rank, peers
        self.ended_here = False  # this rank itself has ended all waits

    def error(self, status: int, request: Request | None, number: int | None) -> HoraError:
        """The exception for a call that answered ``status``; ``number`` is its ticket if it FAILED."""
        name = request.name if request else "join"
        if status == Status.DUPLICATE:
            line = request.line if request else "?"
            return DuplicateNameError(
                f"'{name}' was submitted again before the first operation of that name finished ({line}).\n"
                "Wait for it with synchronize(), or give each operation its own name."
            )
        if status == Status.ABORTED:
            dead = self._lib.dead(self._core)
            return self.peer_lost(dead, name) if dead >= 0 else _closed(name)
        if status == Status.LEFT:
            gone = self._gone()
            words = "".join(self._last_words(rank) for rank in gone)
            text = f"'{name}' cannot run: {compact_ranks(gone)} shut Hora down.{words}"
            return ShutDownError(text if words else explain_left(name, gone)) if gone else _closed(name)
        if status == Status.CLOSED:
            return _closed(name)
        if status in (Status.FULL, Status.TOO_MANY):
            return HorovodInternalError(
                f"'{name}' cannot run: too many operations are in flight, or memory is exhausted. "
                "Wait for some with synchronize() before submitting more; if HORA_ARENA_BYTES is set, raise it."
            )
        assert number is not None
        return self._failure(name, self._lib.failure(self._core, number))

    def _failure(self, name: str, failure: int) -> HoraError:
        code = self._lib.failure_code(self._core, failure)
        said = self.said(failure)
        text = self._text(self._lib.failure_text, failure, TEXT_BYTES)
        if not self._lib.failure_code(self._core, failure):  # or it had gone before all of it was read
            if self._lib.state(self._core, self._rank) == _ABSENT:
                return _closed(name)
            return HorovodInternalError(
                f"'{name}' failed, and so many others since that the reason is no longer known."
            )
        if code == FailureCode.MISMATCH:
            found = text or explain_mismatch(said) or suspicious_lines(said)
            return MismatchError(found or _hidden_mismatch(name, said))
        if code == FailureCode.JOINED:
            return HorovodInternalError(explain_joined(said))
        if code == FailureCode.GONE and int(text) == self._rank:
            return _closed(name)
        if code == FailureCode.GONE:
            words = self._last_words(int(text))
            left = f"'{name}' cannot be done: rank {int(text)} has shut Hora down without submitting it.{words}"
            return ShutDownError(left if words else explain_left(name, [int(text)]))
        if code == FailureCode.WITHDRAWN:
            return HorovodInternalError(f"a part of the group '{name}' failed on another rank, and with it all of it.")
        return (DeadlockError if code == FailureCode.DEADLOCK else StallError)(text or f"'{name}' failed.")

    def peer_lost(self, rank: int, name: str) -> PeerLostError | ShutDownError:
        """The error that names who died, where, how, and what could not be finished because of it; or, if that is this
        rank, that the others believe so."""
        status = self._text(self._lib.status, rank, _STATUS_BYTES)
        deadline = time.monotonic() + _LAST_WORDS_S
        while not status and time.monotonic() < deadline:  # the launcher is about to say how it ended
            time.sleep(0.005)
            status = self._text(self._lib.status, rank, _STATUS_BYTES)
        if rank == self._rank and not self.ended_here and not status.startswith(_BROKEN):
            return ShutDownError(f"'{name}' cannot be done: {given_up(rank, status)}")
        status = status or "its process ended without shutdown()"
        return lost(self._peers[rank], status, name, self._text(self._lib.said, rank, TEXT_BYTES).rstrip())

    def who_left(self) -> str:
        """Who has shut down in good order; empty if nobody has."""
        gone = self._gone()
        return compact_ranks(gone) if gone else ""

    def said(self, failure: int) -> dict[int, Request]:
        """What each rank said of the operation that failed."""
        requests = {}
        for rank in range(len(self._peers)):
            buffer = ctypes.create_string_buffer(DESCRIPTION_BYTES + 1)
            length = self._lib.failure_said(self._core, failure, rank, buffer, len(buffer))
            if length:
                requests[rank] = Request.decode(buffer.raw[:length])
        return requests

    def _last_words(self, rank: int) -> str:
        text = self._text(self._lib.said, rank, TEXT_BYTES).rstrip()
        return f"\nThe last it said:\n{text}" if text else ""

    def _gone(self) -> list[int]:
        return [rank for rank in range(len(self._peers)) if self._lib.state(self._core, rank) == _GONE_CLEAN]

    def _text(self, read: Any, which: int, room: int) -> str:
        buffer = ctypes.create_string_buffer(room)
        length = read(self._core, which, buffer, room)
        return buffer.raw[:length].decode(errors="replace")


def _closed(name: str) -> ShutDownError:
    return ShutDownError(
        f"'{name}' was not finished: another thread of this process shut Hora down meanwhile. "
        "Wait for every operation, in every thread, before shutdown()."
    )


def _hidden_mismatch(name: str, said: dict[int, Request]) -> str:
    shown = min((len(request.segments) for request in said.values()), default=0)
    return (
        f"Mismatched tensors for '{name}': the ranks mean different things by this name. "
        f"They differ in the type or shape of a tensor after the first {shown}.\n"
        "Make the calls agree, or give different operations different names."
    )
