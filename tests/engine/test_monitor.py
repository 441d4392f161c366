"""The monitor goes on watching, and ends, whatever happens to the timeline."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from hora.config.settings import Settings
from hora.engine import monitor as monitor_module
from hora.engine.backend import EventKind, OperationEvent, Pending, RankState, Snapshot
from hora.engine.monitor import Monitor
from hora.engine.request import Request
from hora.engine.timeline import Timeline
from hora.types import Kind


class Backend:
    """One in which an operation waits for ever."""

    def __init__(self) -> None:
        self.looked = threading.Event()
        self.traces: list[bool] = []

    def waiting(self) -> bool:
        return True

    def snapshot(self) -> Snapshot:
        self.looked.set()
        return Snapshot(0, (), ())

    def trace(self, on: bool) -> None:
        self.traces.append(on)

    def events(self) -> list[OperationEvent]:
        return [OperationEvent(1, Request(Kind.BARRIER, "barrier.x", (), (0, 1)), EventKind.AGREED, 0, 0)]


class Unwritable(Timeline):
    """As on a disk that fills up; or with an error of ours in it."""

    def __init__(self, path: Path, error: Exception) -> None:
        super().__init__(str(path), 0, activity="SHM", mark_cycles=False, max_bytes=1 << 20)
        self.error = error

    def _append(self, rows: list[dict[str, object]]) -> None:
        if hasattr(self, "error"):
            raise self.error
        super()._append(rows)


def full() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "timeline" in record.getMessage()]


@pytest.mark.parametrize("error", [full(), KeyError("planted")], ids=["full disk", "error of ours"])
def test_a_timeline_that_cannot_be_written_is_dropped_and_stalls_are_watched_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    backend: Any = Backend()
    monitor = Monitor(0, 2, backend, Settings())
    with caplog.at_level(logging.WARNING):
        monitor.record(Unwritable(tmp_path / "t.json", error))
        assert backend.looked.wait(10)  # after it has tried to write, for it does that first
        monitor.close()
        monitor.close()
    (text,) = warnings(caplog)
    assert "t.json" in text and str(error) in text
    assert backend.traces[:2] == [True, False]


def test_what_cannot_be_finished_is_told_and_does_not_keep_from_closing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend: Any = Backend()
    monitor = Monitor(0, 1, backend, Settings())
    with caplog.at_level(logging.WARNING):
        monitor.record(Unwritable(tmp_path / "first.json", full()))
        monitor.record(Unwritable(tmp_path / "second.json", full()))  # another disk, perhaps
        monitor.close()
    first, second = warnings(caplog)
    assert "first.json" in first and "second.json" in second


class IdleBackend:
    def events(self) -> list[OperationEvent]:
        return []

    def trace(self, on: bool) -> None:
        pass

    def waiting(self) -> bool:
        return False


class Counted:
    def __init__(self) -> None:
        self.written, self.closed = threading.Semaphore(0), False

    def write(self, events: Iterable[OperationEvent]) -> None:
        self.written.release()

    def close(self) -> None:
        self.closed = True


def test_a_timeline_is_written_more_often_than_stalls_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it begins while the monitor sleeps."""
    monkeypatch.setattr(monitor_module, "_EVERY_S", 3600.0)
    backend: Any = IdleBackend()
    timelines: list[Any] = [Counted(), Counted()]
    watch = Monitor(0, 2, backend, Settings())
    try:
        for timeline in timelines:
            watch.record(timeline)
            for _ in range(3):
                assert timeline.written.acquire(timeout=30)
    finally:
        watch.close()
    assert [timeline.closed for timeline in timelines] == [True, True]


def test_who_waits_too_long_is_told_where_the_others_stand() -> None:
    request = Request(Kind.BARRIER, "barrier.x", (), (0, 1, 2), line="train.py:7")
    pending = Pending("barrier.x", (0, 1, 2), {0: request}, 5.0, (1, 2))

    class Late(IdleBackend):
        failed = threading.Event()
        text = ""

        def waiting(self) -> bool:
            return True

        def snapshot(self) -> Snapshot:
            states = tuple(RankState(rank, 70 + rank, False, ()) for rank in range(3))
            return Snapshot(1, states, (pending,))

        def python_stack(self, rank: int, timeout_s: float) -> str:
            return 'MainThread:\n  File "train.py", line 12, in save\n'

        def fail(self, pending: Pending, kind: str, text: str) -> None:
            self.text = text
            self.failed.set()

    backend = Late()
    monitor = Monitor(0, 3, backend, Settings(stall_warn_s=1.0, stall_fail_s=2.0))  # type: ignore[arg-type]
    try:
        assert backend.failed.wait(60.0)
    finally:
        monitor.close()
    assert 'What ranks 1, 2 are doing:\n  MainThread:\n    File "train.py", line 12, in save' in backend.text


def test_a_monitor_that_was_closed_watches_no_more() -> None:
    before = set(threading.enumerate())
    watch = Monitor(0, 2, Backend(), Settings())  # type: ignore[arg-type]
    (mine,) = set(threading.enumerate()) - before
    watch.close()
    watch.close()
    assert not mine.is_alive()
