"""Children that are watched, that outstay their time, and that are left alone: nothing of them stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tests.launch.jobs import clean_environment, wait_until

from hora.lab.trial import child as child_module
from hora.lab.trial.child import Child

DEADLINE_S = 60.0
# Ignores SIGTERM, and so does what it starts in a session of its own; then says that it is ready.
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-S", "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"],
    start_new_session=True)
print("pids", child.pid, flush=True)
time.sleep(600)
"""


def python(program: str) -> list[str]:
    return [sys.executable, "-S", "-c", program]


def said(log: Path) -> str:
    return log.read_text() if log.exists() else ""


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_the_exit_code_and_the_output(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    program = "import os, sys; print(os.getsid(0) == os.getpid(), os.environ['WORD']); sys.exit(7)"
    with Child(python(program), {**os.environ, "WORD": "yes"}, log) as child:
        assert child.wait(DEADLINE_S) == 7
    assert said(log) == "True yes\n" and child.seconds > 0


def test_time_is_up_and_nothing_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, "_GRACE_S", 0.2)
    monkeypatch.setattr(child_module, "_GONE_S", 0.2)
    log = tmp_path / "log.txt"
    with Child(python(STUBBORN), dict(os.environ), log) as child:
        wait_until(lambda: "ready" in said(log) and "pids" in said(log), DEADLINE_S)
        assert child.wait(0.0) is None
        processes = child.usage.processes
    assert len(processes) == 2 and all(gone(process.pid) for process in processes)


def test_what_is_used_is_seen(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    program = "b = bytearray(200 << 20)\nprint('ready', flush=True)\nwhile True: pass"
    with Child(python(program), dict(os.environ), log) as child:
        wait_until(lambda: "ready" in said(log), DEADLINE_S)
        child.usage.look()
        spent = psutil.Process(child.usage.processes[0].pid).cpu_times().user
        wait_until(lambda: child.usage.processes[0].cpu_times().user > spent + 0.1, DEADLINE_S)
        child.usage.look()
        assert 200 << 20 <= child.usage.memory_bytes < 400 << 20
        assert 0 < child.usage.cpu_share() <= 1.1
    assert child.usage.gpu_share() is None


def test_gpus_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nprintf '0, 40\\n1, 80\\n0, 60\\n1, 60\\n'\nexec sleep 600\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with Child(python("import time; time.sleep(600)"), dict(os.environ), tmp_path / "log.txt") as child:
        wait_until(lambda: child.usage.gpu_share() is not None, DEADLINE_S)
    assert child.usage.gpu_share() == pytest.approx(0.6)
    assert child.usage.gpu_over_time() == [[0.0, 0.4, 0.8], [0.5, 0.6, 0.6]]


def test_cores_are_told_by_rank(tmp_path: Path) -> None:
    program = (
        "import os, subprocess, sys\nworkers = [subprocess.Popen([sys.executable, '-S', '-c', 'while True: pass'],"
        + (
            " env={**os.environ, 'HORA_RANK': str(rank)}) for rank in (0, 1)]\nprint('begun', flush=True)\n"
            "[each.wait() for each in workers]"
        )
    )
    with Child(python(program), dict(os.environ), tmp_path / "log.txt") as child:
        wait_until(lambda: "begun" in (tmp_path / "log.txt").read_text(), DEADLINE_S)

        def looked() -> bool:
            child.usage.look()
            return len(child.usage.cpu_over_time()) > 3

        wait_until(looked, DEADLINE_S, every_s=0.2)
    rows = child.usage.cpu_over_time()
    assert all(len(row) == 3 for row in rows) and sum(row[1] for row in rows) > 0 and sum(row[2] for row in rows) > 0


def test_it_ends_when_we_are_killed(tmp_path: Path) -> None:
    program = f"""
import os, pathlib
from hora.lab.trial.child import Child
with Child([{sys.executable!r}, "-S", "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(600)"],
           dict(os.environ), pathlib.Path({str(tmp_path / "log.txt")!r})) as child:
    child.wait(600)
"""
    process = subprocess.Popen([sys.executable, "-c", program], env=clean_environment(), start_new_session=True)
    try:
        wait_until(lambda: said(tmp_path / "log.txt").endswith("\n"), DEADLINE_S, "the child's start")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    pid = int(said(tmp_path / "log.txt"))
    wait_until(lambda: gone(pid), DEADLINE_S, "the child's end")
