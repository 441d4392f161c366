"""How a worker ended, as its host saw it."""

from __future__ import annotations

import signal
from typing import NamedTuple

__all__ = ["Ending", "how_it_ended", "out_of_memory_kills"]


class Ending(NamedTuple):
    """How one worker ended. ``stopped`` means that Hora had asked it to; ``lost`` that nobody saw its end, and why;
    ``oom_kills`` how often its host's kernel killed because memory ran out meanwhile, None if it does not say."""

    rank: int
    host: str
    pid: int
    returncode: int
    seconds: float
    stopped: bool
    cpu_s: float
    peak_bytes: int
    oom_kills: int | None = None
    lost: str = ""

    @property
    def failed(self) -> bool:
        return self.returncode != 0

    @property
    def how(self) -> str:
        """How it ended, in words, without guessing at the cause."""
        return self.lost or how_it_ended(self.returncode)


def how_it_ended(returncode: int) -> str:
    """An exit code in words.

    >>> how_it_ended(3), how_it_ended(-11)
    ('exit code 3', 'signal 11 (SIGSEGV)')
    """
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return f"signal {-returncode} ({signal.Signals(-returncode).name})"
    except ValueError:
        return f"signal {-returncode}"


def out_of_memory_kills() -> int | None:
    """How often this machine's kernel has killed a process because memory ran out; None if it does not say."""
    try:
        with open("/proc/vmstat", "rb") as file:
            return next((int(line.split()[1]) for line in file if line.startswith(b"oom_kill ")), None)
    except OSError:
        return None
