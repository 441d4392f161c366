"""The monitor: one background thread that looks for deadlocks and stalls, and writes the timeline.

It looks four times a second for deadlocks and stalls while something of this rank is in flight, and twenty times for
timeline events to write, if there is a timeline. It never touches data, so what it watches cannot make it hang; and a
timeline that cannot be written, because a disk is full, is dropped and does not keep it from watching.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from hora.config.settings import Settings
from hora.engine.backend import Backend
from hora.engine.stall import (
    SilentRank,
    StallFailure,
    StallGiveUp,
    StallWarning,
    StallWatch,
    silence_text,
    standing,
    warning_text,
)
from hora.engine.timeline import Timeline
from hora.errors import HoraError

__all__ = ["Monitor"]

_log = logging.getLogger("hora")
_EVERY_S = 0.25
_WRITE_EVERY_S = 0.05  # there are scripts that read their timeline a tenth of a second later
_LONGEST_WAIT_S = 0.3  # an operation that is done within this is not looked at


class Monitor:
    """Watches one backend until closed."""

    def __init__(self, rank: int, size: int, backend: Backend, settings: Settings) -> None:
        self._backend, self._settings, self._size = backend, settings, size
        self._stall = StallWatch(rank, settings)
        self._stop, self._wake = threading.Event(), threading.Event()
        self._timeline: Timeline | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="hora-monitor", daemon=True)
        self._thread.start()

    def record(self, timeline: Timeline | None) -> None:
        """Write events to this timeline from now on, or to none; the one before is completed first."""
        with self._lock:
            self._write(last=True)
            self._backend.trace(timeline is not None)
            self._timeline = timeline
        self._wake.set()

    def _write(self, *, last: bool = False) -> None:
        """What happened since; the caller has the lock."""
        timeline = self._timeline
        if timeline is None:
            return
        events = self._backend.events()
        try:
            timeline.write(events)
            if last:
                timeline.close()
        except Exception as error:
            self._timeline = None
            timeline.drop()
            self._backend.trace(False)
            _log.warning(
                "the timeline %s is no longer written: %s. What was written before stays; nothing else is lost.",
                timeline.path, error,
            )  # fmt: skip

    def close(self) -> None:
        """Stop watching. Safe to call twice."""
        self._stop.set()
        self._wake.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5.0)
        self.record(None)

    def _run(self) -> None:
        busy_since, look_at = 0.0, 0.0
        while True:
            self._wake.wait(_WRITE_EVERY_S if self._timeline is not None else _EVERY_S)
            self._wake.clear()
            if self._stop.is_set():
                return
            try:
                with self._lock:
                    self._write()
                now = time.monotonic()
                if now < look_at:
                    continue
                look_at = now + _EVERY_S
                busy_since = (busy_since or now) if self._size > 1 and self._backend.waiting() else 0.0
                if busy_since and now - busy_since >= _LONGEST_WAIT_S:
                    self._look()
            except HoraError:
                continue  # the generation is ending; whoever waits is told by the backend
            except Exception:
                if not self._stop.is_set():
                    _log.exception("internal error in the monitor; stall detection continues")

    def _look(self) -> None:
        fail_s = self._settings.stall_fail_s
        for action in self._stall.look(self._backend.snapshot(), time.monotonic()):
            match action:
                case StallFailure(pending=pending, kind=kind, text=text):
                    stacks = self._stacks(pending.missing) if kind == "stall" else {}
                    self._backend.fail(pending, kind, "\n".join([text, *standing(stacks)]))
                case StallGiveUp(rank=rank, status=status):
                    self._backend.give_up(rank, status)
                case SilentRank():
                    _log.warning(silence_text(action, fail_s))
                case StallWarning(missing=missing):
                    _log.warning(warning_text(action, self._stacks(missing), fail_s))

    def _stacks(self, ranks: Sequence[int]) -> dict[int, str]:
        """Where some of these ranks stand."""
        return {rank: self._backend.python_stack(rank, 1.0) for rank in ranks[:4]}
