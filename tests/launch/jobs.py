"""Starting real jobs in tests, and looking for what they leave behind."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).resolve().parents[2] / "src"


def clean_environment(**more: str) -> dict[str, str]:
    """This process's environment without anything that a launcher, or these tests' own launcher, has set."""
    strange = ("HORA_", "HOROVOD_", "OMPI_", "PMI", "SLURM", "TORCHELASTIC")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(strange)}
    return {**kept, "PYTHONPATH": str(SOURCE), **more}


def hora(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "hora", *map(str, arguments)]


def run_hora(
    *arguments: str | Path, timeout_s: float = 90.0, cwd: Path | None = None, stdin: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """``hora …`` to its end."""
    return subprocess.run(
        hora(*arguments),
        env=clean_environment(**environment),
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
        cwd=cwd,
        input=stdin,
    )


class Shown(NamedTuple):
    """What a terminal got, and how the command ended."""

    text: str
    exit_code: int


def on_terminal(
    *arguments: str | Path, columns: int = 80, timeout_s: float = 60.0, cwd: Path | None = None,
    interrupt_at: str = "", **environment: str,
) -> Shown:  # fmt: skip
    """``hora …`` to its end, on a terminal of its own, as a person runs it; who presses Ctrl-C when a text appears."""
    reading, writing = pty.openpty()
    fcntl.ioctl(writing, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    env = clean_environment(**{"TERM": "xterm-256color", **environment})
    for name in {"COLUMNS", "LINES"} - environment.keys():  # pytest-xdist sets them; the terminal has a size of its own
        env.pop(name, None)
    with os.fdopen(reading, "rb", buffering=0) as terminal:
        process = subprocess.Popen(
            hora(*arguments), env=env, cwd=cwd,
            stdin=writing, stdout=writing, stderr=writing, start_new_session=True,
            preexec_fn=partial(fcntl.ioctl, 0, termios.TIOCSCTTY, 0) if interrupt_at else None,
        )  # fmt: skip
        os.close(writing)
        late = threading.Timer(timeout_s, process.kill)
        late.start()
        text = bytearray()
        try:
            while data := terminal.read(1 << 16):
                text += data
                if interrupt_at and interrupt_at.encode() in text:
                    os.write(terminal.fileno(), b"\x03")
                    interrupt_at = ""
        except OSError:  # EIO: nobody holds the other end any more
            pass
        finally:
            process.wait()
            late.cancel()
    return Shown(text.decode(errors="replace").replace("\r\n", "\n"), process.returncode)


def start_hora(*arguments: str | Path, **environment: str) -> subprocess.Popen[str]:
    """``hora …`` left running, in a session of its own, its output to be read line by line."""
    return subprocess.Popen(
        hora(*arguments),
        env=clean_environment(**environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def python(program: str) -> Sequence[str]:
    """A worker's command."""
    return sys.executable, "-c", program


def processes_of(job: str) -> dict[int, str]:
    """Live processes that carry the job's cookie, with their command lines."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if f"HORA_JOB={job}\0".encode() in (entry / "environ").read_bytes():
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
    return found


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def rest_of(process: subprocess.Popen[str], deadline_s: float) -> str:
    """What it still prints, to its end. ``communicate`` would lose what was read ahead when a line was read."""
    assert process.stdout is not None
    late = threading.Timer(deadline_s, process.kill)
    late.start()
    try:
        said = process.stdout.read()
        process.wait()
    finally:
        late.cancel()
    return said


def shared_files() -> set[str]:
    """What of Hora's is in /dev/shm; others put their files there and take them away as they like."""
    return {name for name in os.listdir("/dev/shm") if "hora" in name}


def wait_until(
    condition: Callable[[], bool], deadline_s: float = 60.0, what: str = "the condition", every_s: float = 0.01
) -> None:
    """Poll, with a deadline that only a hang reaches; never a plain sleep."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"{what} did not come true within {deadline_s} s"
        time.sleep(every_s)
