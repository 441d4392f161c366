"""Catching the signals that the launcher passes on to its workers."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

__all__ = ["Signals"]

_CAUGHT = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP,
)  # fmt: skip


class Signals:
    """Signals to this process while a job runs, as a queue with a descriptor to wait on.

    Handlers can only be set by the main thread; elsewhere nothing is caught. A signal that is ignored (nohup, a
    background job of a shell) stays ignored.
    """

    def __init__(self) -> None:
        self._pending: list[signal.Signals] = []
        self._before: dict[signal.Signals, Callable[[int, FrameType | None], object] | int | None] = {}
        self._wakeup_before: int | None = None
        self.fd, self._write = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write, False)

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:  # the kernel would keep exit codes from us
                self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            # The kernel may give a signal to any thread, which does not wake the one that waits on our descriptor.
            self._wakeup_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
            for number in _CAUGHT:
                if signal.getsignal(number) != signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._caught)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._wakeup_before is not None:
            signal.set_wakeup_fd(self._wakeup_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self.fd)
        os.close(self._write)

    def put(self, number: signal.Signals) -> None:
        """Queue a signal; safe from any thread."""
        self._pending.append(number)
        with contextlib.suppress(OSError):  # full, so the reader is awake anyway; or closed, so nobody cares
            os.write(self._write, b"x")

    def take(self) -> list[signal.Signals]:
        try:
            os.read(self.fd, 4096)
        except BlockingIOError:
            return []
        taken, self._pending = self._pending, []
        return taken

    def _caught(self, number: int, frame: FrameType | None) -> None:
        self.put(signal.Signals(number))
