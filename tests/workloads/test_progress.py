"""What is told while training: a bar on a terminal, also through the launcher; lines in a log."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import sys
import termios
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hora.workloads.progress import (
    MARK,
    ProgressBar,
    ProgressLines,
    ProgressListener,
    ProgressMarks,
    ProgressState,
    decode,
    encode,
    launcher_draws,
    progress_reporter,
)

STATE = ProgressState(
    epoch=2, epochs=40, step=100, steps=300, done=0.25, lr=1e-4, images_per_s=1234.5, left_s=3661,
    metrics={"loss": 0.125, "accuracy": 0.96875},
)  # fmt: skip
TEXT = "epoch 3/40  step 100/300  loss 0.1250  accuracy 96.88 %  1,234 images/s  lr 0.0001  ETA 1:01:01"


def drawn(*lines: bytes) -> str:
    """What a terminal of 80 columns gets from a launcher that heard these lines."""
    reading, writing = pty.openpty()
    with os.fdopen(writing, "w") as stream:
        fcntl.ioctl(stream, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        bar = ProgressBar(stream)
        listener = ProgressListener(stream.buffer.write, bar)
        for line in lines:
            listener(line)
        bar.close()
    found = b""
    with os.fdopen(reading, "rb", buffering=0) as terminal, suppress(OSError):  # which ends it: nobody writes any more
        while part := terminal.read(1 << 16):  # it comes in pieces
            found += part
    return found.decode()


def test_the_launcher_draws_what_the_first_worker_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    marked = b"[0]<stdout>:" + encode(STATE)
    text = drawn(b"[0]<stdout>:mnist: 2 workers\n[1]<stdout>:hello\n", marked)
    assert "mnist: 2 workers" in text and "[0]<stdout>" not in text and "[1]<stdout>:hello" in text
    assert " 25 % epoch 3/40  step 100/300  loss 0.1250  1,234 images/s  ETA 1:01:01" in text
    assert MARK.decode() not in text


@given(left_s=st.floats(), loss=st.floats(), speed=st.floats(), cut=st.integers(0, 200))
def test_a_mark_carries_every_number_and_a_torn_one_nothing(left_s: float, loss: float, speed: float, cut: int) -> None:
    state = msgspec.structs.replace(STATE, epochs=40.0, left_s=left_s, images_per_s=speed, metrics={"loss": loss})
    line = encode(state)
    assert repr(decode(line)) == repr(state), "nan, infinity and all"
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    torn = decode(line[: len(MARK) + cut])
    assert torn is None or repr(torn) == repr(state)


def test_a_bar_that_fails_is_given_up_and_no_line_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(ProgressBar):
        def draw(self, state: ProgressState) -> None:
            raise RuntimeError("cannot draw")

    out = io.BytesIO()
    listener = ProgressListener(out.write, Broken(io.StringIO()))
    listener(b"[0]<stdout>:" + encode(STATE) + b"[0]<stdout>:one\n" + encode(STATE) + b"[1]<stdout>:two\n")
    assert out.getvalue() == b"one\n[1]<stdout>:two\n"
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_log_of_slow_steps_gets_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 1000, 25))
    monkeypatch.setattr("hora.workloads.progress.time.monotonic", lambda: float(next(clock)))
    told = ProgressLines(every=1000)
    for step in range(1, 7):
        told.step(lambda: STATE, step)
    assert capsys.readouterr().out.splitlines() == [TEXT] * 2


def test_a_log_gets_a_line_every_so_many_steps(capsys: pytest.CaptureFixture[str]) -> None:
    told = ProgressLines(every=10)
    for step in range(1, 31):
        told.step(lambda: STATE, step)
    told.say("the end")
    assert capsys.readouterr().out.splitlines() == [TEXT] * 3 + ["the end"]


def test_who_tells(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    assert type(progress_reporter(5)) is ProgressLines
    with launcher_draws():
        marks = progress_reporter(5)
        assert type(marks) is ProgressMarks
        monkeypatch.setattr(sys, "stdout", sys.__stdout__)
        for step in range(100):
            marks.step(lambda: STATE, step)  # a few times a second, not every time
    assert type(progress_reporter(5)) is ProgressLines
    lines = capfd.readouterr().out.encode().splitlines()
    assert 1 <= len(lines) < 50 and decode(lines[0]) == STATE
