"""The monitor alone, over a backend that is none."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import pytest

from hora.config.settings import Settings
from hora.engine import monitor
from hora.engine.backend import Event


class Backend:
    def events(self) -> list[Event]:
        return []

    def trace(self, on: bool) -> None:
        pass

    def waiting(self) -> bool:
        return False


class Timeline:
    def __init__(self) -> None:
        self.written, self.closed = threading.Semaphore(0), False

    def write(self, events: Iterable[Event]) -> None:
        self.written.release()

    def close(self) -> None:
        self.closed = True


def test_a_timeline_is_written_more_often_than_stalls_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it begins while the monitor sleeps."""
    monkeypatch.setattr(monitor, "_EVERY_S", 3600.0)
    backend: Any = Backend()
    timelines: list[Any] = [Timeline(), Timeline()]
    watch = monitor.Monitor(0, 2, backend, Settings())
    try:
        for timeline in timelines:
            watch.record(timeline)
            for _ in range(3):
                assert timeline.written.acquire(timeout=30)
    finally:
        watch.close()
    assert [timeline.closed for timeline in timelines] == [True, True]
