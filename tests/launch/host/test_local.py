"""One worker's process: how it ended is told at once, whatever reaping takes."""

from __future__ import annotations

import os
import signal
import sys

import pytest
from tests.launch.jobs import wait_until

from hora.launch.host.local import Process

KILLED = f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})"


@pytest.mark.parametrize(("program", "code"), [("raise SystemExit(3)", 3), ("", 0), (KILLED, -signal.SIGKILL)])
def test_how_it_ended_is_told_before_it_is_reaped(program: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process([sys.executable, "-c", program], dict(os.environ), inherit=[])
    pipes, told, before, reap = process.take_pipes(), list[int](), list[list[int]](), os.wait4

    def slow(pid: int, options: int) -> object:
        before.append(list(told))
        return reap(pid, options)

    monkeypatch.setattr(os, "wait4", slow)
    wait_until(lambda: process.poll(told.append) is not None, 60.0, "its end")
    assert process.poll(told.append) == process.returncode == code
    assert told == [code] and before == [[code]]
    assert process.usage is not None and process.usage.ru_maxrss > 0
    process.close()
    for pipe in pipes:
        os.close(pipe)
