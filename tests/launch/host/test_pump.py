"""The pump reads on, whatever happens around it."""

from __future__ import annotations

import os
import time

import pytest
from tests.prompt import PROMPT_S

from hora.launch.host.pump import Pump


def test_pump_gives_up_a_pipe_that_someone_still_holds() -> None:
    reader, writer = os.pipe()
    got, closed = bytearray(), []
    pump = Pump(on_broken=lambda: None)
    pump.add(reader, got.extend, lambda: closed.append(True))
    pump.start()
    os.write(writer, b"last words")
    started = time.monotonic()
    pump.finish()
    os.close(writer)
    assert got == b"last words"
    assert closed == [True]
    assert time.monotonic() - started < PROMPT_S


def test_pump_reports_a_broken_console_once_and_reads_on() -> None:
    readers = [os.pipe() for _ in range(2)]
    broken: list[bool] = []
    pump = Pump(on_broken=lambda: broken.append(True))

    def take(data: bytes) -> None:
        raise BrokenPipeError

    for reader, _ in readers:
        pump.add(reader, take)
    pump.start()
    for _, writer in readers:
        os.write(writer, b"x" * 1000)
        os.close(writer)
    pump.finish()
    assert broken == [True]


def test_pump_reads_on_whatever_a_consumer_raises(caplog: pytest.LogCaptureFixture) -> None:
    (failing, into_failing), (reader, writer) = os.pipe(), os.pipe()
    got, closed = bytearray(), []
    pump = Pump(on_broken=lambda: None)

    def take(data: bytes) -> None:
        raise ValueError("cannot be shown")

    pump.add(failing, take, lambda: closed.append(True))
    pump.add(reader, got.extend)
    pump.start()
    for _ in range(100):  # more than two pipes hold: somebody must read
        os.write(into_failing, b"x" * 4096)
        os.write(writer, b"y" * 4096)
    os.close(into_failing)
    os.close(writer)
    pump.finish()
    assert len(got) == 409_600 and closed == [True]
    assert "cannot be shown" in caplog.text
