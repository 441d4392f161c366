"""Splits what mpirun prints into its workers' lines, which it tags with their rank, and its own messages."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from hora.launch import failure
from hora.launch.job_output import JobOutput
from hora.launch.output import Tail

__all__ = ["TAGS", "Culprit", "Separator", "find_culprit"]

# Each begins a piece of one worker's output: a line, or what it wrote at once.
TAGS = {
    "Open MPI": re.compile(rb"\[\d+,(?P<rank>\d+)\]<(?:stdout|stderr)>: ?"),
    "MPICH": re.compile(rb"<hora:(?P<rank>\d+)>"),  # the pattern that mpirun is given
    "Intel MPI": re.compile(rb"^\[(?P<rank>\d+)\] "),
}
_LONGEST_LINE_BYTES = 1 << 16


class Separator:
    """Reads mpirun's pipes and hands each worker's lines to the record; its own are kept for when they are needed."""

    def __init__(self, tag: re.Pattern[bytes], record: JobOutput, say: Callable[[str], None]) -> None:
        self._tag, self._record, self._say = tag, record, say
        self._rest = {"stdout": b"", "stderr": b""}
        self._own: list[bytes] = []
        self._closed = 0
        self._all_closed = threading.Event()
        self.heard_workers = False

    def take_pipe(self, rank: int, name: str, fd: int) -> None:
        self._record.take_foreign_pipe(fd, partial(self._take, name), partial(self._end, name))

    def own_words(self) -> str:
        return b"".join(self._own).decode("utf-8", "replace")

    def own_tail(self) -> Tail:
        """Its own words, as the last lines of a report."""
        tail = Tail()
        for line in self._own:
            tail.add("stderr", line)
        return tail

    def wait_until_read(self, timeout_s: float) -> None:
        """Until both pipes have ended, or nobody can wait any longer."""
        self._all_closed.wait(timeout_s)

    def _take(self, name: str, data: bytes) -> None:
        lines = (self._rest[name] + data).splitlines(keepends=True)
        complete = not lines or lines[-1].endswith(b"\n") or len(lines[-1]) > _LONGEST_LINE_BYTES
        self._rest[name] = b"" if complete else lines.pop()
        for line in lines:
            self._line(name, line)

    def _end(self, name: str) -> None:
        if self._rest[name]:
            self._line(name, self._rest[name])
            self._rest[name] = b""
        self._closed += 1
        if self._closed == 2:
            self._all_closed.set()

    def _line(self, name: str, line: bytes) -> None:
        """One line; it holds pieces of several workers where these wrote no line end."""
        tags = list(self._tag.finditer(line))
        own = line[: tags[0].start()] if tags else line
        if own.strip():
            self._own.append(own)
            self._say(own.decode("utf-8", "replace").rstrip())
        ends = [tag.start() for tag in tags[1:]] + [len(line)]
        for tag, end in zip(tags, ends, strict=False):
            self.heard_workers = True
            if piece := line[tag.end() : end]:
                self._record.put(int(tag["rank"]), name, piece)


class Culprit(NamedTuple):
    """The rank that failed, its process (0 if unknown) and the signal that killed it (0 if none)."""

    rank: int
    pid: int
    signal: int


def find_culprit(said: str, tails: Mapping[int, Tail]) -> Culprit | None:
    """The rank that failed first, by mpirun's message or its last lines; None if it is unknown.

    >>> find_culprit("process rank 1 with PID 0 on node h2 exited on\\nsignal 9 (Killed).", {})
    Culprit(rank=1, pid=0, signal=9)
    >>> find_culprit("   Process name: [prterun-h1-9224@1,3]\\n   Exit code:    7", {})
    Culprit(rank=3, pid=0, signal=0)
    """
    words = " ".join(said.split())
    if match := re.search(r"process rank (\d+) with PID (\d+) on node \S+ exited on signal (\d+)", words):
        return Culprit(int(match[1]), int(match[2]), int(match[3]))
    if match := re.search(r"Process name: \[[^\]]*,\s*(\d+)\] Exit code: (\d+)", words):
        return Culprit(int(match[1]), 0, 0)
    for rank, tail in sorted(tails.items()):
        raised = any(line.startswith("Traceback (most recent call last)") for line in tail.lines("stderr"))
        if raised and not failure.is_consequence(tail):
            return Culprit(rank, 0, 0)
    return None
