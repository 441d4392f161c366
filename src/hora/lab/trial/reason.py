"""Why a child failed, from its exit code and the end of what it printed."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

from hora.launch.failure import exit_code, how_it_ended

__all__ = ["line", "out_of_memory", "tail"]

_TAIL_BYTES = 1 << 16
_MEMORY = re.compile(
    r"MemoryError\b|std::bad_alloc|CUDA out of memory|CUDA error: out of memory|ALLOC_FAILED"
    r"|DefaultCPUAllocator: (?:can't allocate|not enough) memory|Cannot allocate memory|: out of memory \(the kernel"
)
_PREFIX = re.compile(r"^(?:\[\d+\]<std\w+>:|\| ?)\s?")  # of a rank's line; of a line in the launcher's box
_SAID = re.compile(r"^hora: (?!rank \d+ failed)(.*)")
_RAISED = re.compile(r"^(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Unfit|Data|Checkpoint)\b.*")


def tail(log: Path, size: int = _TAIL_BYTES) -> str:
    """The end of a log; empty if there is none."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def out_of_memory(code: int, said: str, oom_kills: int) -> bool:
    """Whether it failed because memory ran out: it says so, or was killed while the kernel killed somebody for that.

    >>> out_of_memory(1, "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory", 0)
    True
    >>> out_of_memory(-9, "", 1), out_of_memory(-9, "", 0), out_of_memory(1, "KeyError: 7", 1)
    (True, False, False)
    """
    killed = exit_code(code) == 128 + signal.SIGKILL or "signal 9 (SIGKILL)" in said
    return _MEMORY.search(said) is not None or (killed and oom_kills > 0)


def line(code: int, said: str) -> str:
    """The one line that says most: what memory was short of, what Hora said, what was raised last, or the exit code.

    >>> line(2, "epoch 1\\nhora: there is no folder /data. Make it with 'hora data make mnist'.\\n")
    "there is no folder /data. Make it with 'hora data make mnist'."
    >>> line(1, "[1]<stderr>:Traceback (most recent call last):\\n[1]<stderr>:ValueError: no such thing\\n")
    'ValueError: no such thing'
    >>> line(-9, "")
    'signal 9 (SIGKILL)'
    """
    lines = [_PREFIX.sub("", text).strip() for text in said.splitlines()]
    for pattern in (_MEMORY, _SAID, _RAISED):
        found = [text for text in lines if pattern.search(text)]
        if found:
            # Of what was raised the last is what ended it; of what Hora said the first is the cause.
            chosen = found[-1] if pattern is _RAISED else found[0]
            return chosen.removeprefix("hora: ").removeprefix("hora.errors.")[:500]
    return how_it_ended(code)
