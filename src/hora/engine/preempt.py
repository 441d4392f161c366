"""Preemption: a scheduler's signal becomes an answer that all ranks get at the same call.

Schedulers warn a job before they take its hosts away (Slurm's ``--signal``, SIGTERM on preemption), but they warn
processes, each at another moment. ``preempted`` tells every rank the same thing at the same step, so that they can save
their state and leave together; the script then exits with ``PREEMPTED_EXIT_CODE``, which job scripts written by
``hora submit`` take as "start me again". The signal's handler only sets a flag.

No signal is caught before ``preempted`` is called for the first time: a script that never calls it ends at SIGTERM.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

from hora.config.settings import PREEMPTED_EXIT_CODE
from hora.engine import session
from hora.engine.request import OperationSpec, forms
from hora.errors import UsageError
from hora.types import Buffer, DType, Kind

__all__ = ["PREEMPTED_EXIT_CODE", "preempted", "preempted_or"]

_SIGNALS = (signal.SIGUSR1, signal.SIGTERM)
_AGAIN_S = 5.0  # one warning may arrive twice, by the launcher and by the scheduler; later it is a second one
_Handler = Callable[[int, FrameType | None], object] | int | None

_MOST = 1 << 16  # ranks: three counts travel in one number

_before: dict[int, _Handler] = {}  # what handled each signal before us; empty until the first question
_caught_at = 0.0


def preempted() -> bool:
    """Whether any worker was asked to leave, by SIGUSR1 or SIGTERM: the same answer on all ranks at the same call.

    A collective of one number: all ranks call it, at a step boundary, for instance once a step. Once true, it stays
    true. The first call installs the handlers and must come from the main thread. Another SIGTERM, five seconds or
    more after the first, ends the process as if nobody had asked.

    >>> session.init()
    >>> preempted()
    False
    >>> signal.raise_signal(signal.SIGUSR1)
    >>> preempted()
    True
    >>> _forget()
    >>> session.shutdown()
    """
    return preempted_or()[0]


def preempted_or(*others: bool) -> tuple[bool, ...]:
    """The same, and of each other thing, two at most, whether it is true on any rank, which costs nothing more.

    >>> session.init()
    >>> preempted_or(True, False)
    (False, True, False)
    >>> _forget()
    >>> session.shutdown()
    """
    engine = session.engine()
    if not _before:
        _install()
    words = (_caught_at > 0, *others)
    asked = ctypes.c_int64(sum(_MOST**place for place, word in enumerate(words) if word))
    here = (Buffer(ctypes.addressof(asked), DType.INT64, (1,), asked),)
    # A sum, because ranks that have joined count as zero in it.
    engine.prepare(OperationSpec(Kind.ALLREDUCE, "hora.preempted", forms(here))).start(here, here).wait()
    return tuple(asked.value // _MOST**place % _MOST > 0 for place in range(len(words)))


def _install() -> None:
    if threading.current_thread() is not threading.main_thread():
        raise UsageError(
            f"preempted() was called first in the thread {threading.current_thread().name!r}. Python lets only the main"
            " thread catch signals. Call it once in the main thread, after init()."
        )
    for number in _SIGNALS:
        _before[number] = signal.signal(number, _catch)


def _catch(number: int, frame: FrameType | None) -> None:
    global _caught_at
    now = time.monotonic()
    if not _caught_at:
        _caught_at = now
    earlier = _before[number]
    if callable(earlier):  # somebody else, such as a library, listens too
        earlier(number, frame)
    elif number == signal.SIGTERM and now - _caught_at > _AGAIN_S:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _let_children_be_ended() -> None:
    """A forked child, such as a data loader's, ends at SIGTERM as its parent expects. It stays deaf to SIGUSR1, which
    launchers send to whole process groups: it would die of it, and take the step that is under way with it."""
    if signal.SIGTERM in _before:
        signal.signal(signal.SIGTERM, _before[signal.SIGTERM])


os.register_at_fork(after_in_child=_let_children_be_ended)


def _forget() -> None:
    """Put everything back, for tests."""
    global _caught_at
    for number, handler in _before.items():
        signal.signal(number, handler)
    _before.clear()
    _caught_at = 0.0
