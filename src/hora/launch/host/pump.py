"""Reading the pipes of many workers in one thread.

The pump never blocks the supervisor: a console that does not read stops the workers' output, not the watch over their
lives. A pipe that a daemon still holds after the job has ended is not waited for.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable

__all__ = ["Pump"]

_log = logging.getLogger("hora")

_CHUNK_BYTES = 1 << 16
_SOON_S = 0.01
_QUIET_S = 0.25  # how long a pipe that someone holds beyond the job's end must be silent to be given up


class Pump(threading.Thread):
    """Reads every pipe and hands what it reads to the pipe's consumer, in this one thread.

    ``on_broken`` is called once when the console has gone away (``hora run … | head``). Whatever a consumer raises, the
    thread reads on: workers whose pipe nobody reads stand still.
    """

    def __init__(self, on_broken: Callable[[], None]) -> None:
        super().__init__(name="hora-output", daemon=True)
        self._on_broken = on_broken
        self._selector = selectors.DefaultSelector()
        self._wake_r, self._wake_w = os.pipe()
        self._selector.register(self._wake_r, selectors.EVENT_READ, None)
        os.set_blocking(self._wake_w, False)
        self._put: deque[Callable[[], None]] = deque()
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._finishing = False

    def add(self, fd: int, take: Callable[[bytes], None], close: Callable[[], None] = lambda: None) -> None:
        """Take over a pipe's reading end."""
        self.put(lambda: self._register(fd, take, close))

    def put(self, action: Callable[[], None]) -> None:
        """Have this done in the pump's thread, after what was put before."""
        self._put.append(action)
        with contextlib.suppress(BlockingIOError):  # full: it is awake anyway
            os.write(self._wake_w, b"x")

    def keep_back(self, seconds: float, give_out: Callable[[], None]) -> None:
        """Have this done later, if that comes before the end. For who is called in this thread."""
        self._later.append((time.monotonic() + seconds, give_out))

    def finish(self, meanwhile: Callable[[], None] | None = None) -> None:
        """The job is over: read what is left, then end the thread and close everything. ``meanwhile`` is called again
        and again until that is done."""
        self._finishing = True
        self.put(lambda: None)
        self.join(_SOON_S if meanwhile is not None else None)  # mostly there is nothing left
        while meanwhile is not None and self.is_alive():
            meanwhile()
        self.join()
        os.close(self._wake_r)
        os.close(self._wake_w)
        self._selector.close()

    def run(self) -> None:
        while not self._finishing or self._put or len(self._selector.get_map()) > 1:
            ready = self._selector.select(_QUIET_S if self._finishing else self._until_later())
            if not ready and self._finishing:
                break
            for key, _ in ready:
                if key.data is None:
                    os.read(self._wake_r, 4096)
                    while self._put:
                        self._guarded(self._put.popleft())
                elif not self._read(key):
                    self._close(key)
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                self._close(key)

    def _until_later(self) -> float | None:
        """Do what is due by now; how long until there is more."""
        now = time.monotonic()
        due = [give_out for when, give_out in self._later if when <= now]
        self._later = [(when, give_out) for when, give_out in self._later if when > now]
        for give_out in due:
            self._guarded(give_out)
        return min(when for when, _ in self._later) - now if self._later else None

    def _register(self, fd: int, take: Callable[[bytes], None], close: Callable[[], None]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, (take, close))

    def _read(self, key: selectors.SelectorKey) -> bool:
        try:
            data = os.read(key.fd, _CHUNK_BYTES)
        except OSError:  # nothing more can come from it
            return False
        if data:
            self._guarded(lambda: key.data[0](data))
        return bool(data)

    def _close(self, key: selectors.SelectorKey) -> None:
        self._selector.unregister(key.fd)
        self._guarded(key.data[1])
        os.close(key.fd)

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError:  # keep reading, or the workers would block on a full pipe
            on_broken, self._on_broken = self._on_broken, lambda: None
            on_broken()
        except Exception:
            _log.exception("a part of the output could not be shown")
