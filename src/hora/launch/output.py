"""Workers' output: prefixed line by line as horovodrun does, written to the console and to files, its last lines kept.

``host.pump`` reads it from the workers' pipes.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NamedTuple, TextIO

from hora.config.quiet import QuietOutput
from hora.engine.frames import ENDS

__all__ = ["Console", "Tail", "WorkerStream", "rank_directory"]

Sink = Callable[[bytes], None]

_LONGEST_LINE_BYTES = 1 << 16  # a longer one is printed in parts, so that memory is bounded
# May begin what a worker says because it ends: an exception, one of the compiler, a crash, a refusal.
_LAST_WORDS = re.compile(rb'Traceback \(most recent call last\):|  File "|Fatal Python error: |usage: |hora: ')
_KEEP_BACK_S, _KEEP_LAST_S = 3.0, 30.0  # how long what may be last words, or is, waits for the end of its worker


class Console(NamedTuple):
    """Where the launcher's standard output and error go."""

    stdout: Sink
    stderr: Sink

    @staticmethod
    def of_process() -> Console:
        """This process's own descriptors, past Python's buffers."""
        return Console(_to_descriptor(1), _to_descriptor(2))

    @staticmethod
    def of_streams(stdout: TextIO, stderr: TextIO) -> Console:
        """Text streams, such as a notebook's."""
        return Console(_to_text(stdout), _to_text(stderr))


def _to_descriptor(fd: int) -> Sink:
    def write(data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(fd, view) :]
            except BlockingIOError:  # someone made the terminal non-blocking
                time.sleep(0.01)

    return write


def _to_text(stream: TextIO) -> Sink:
    def write(data: bytes) -> None:
        stream.write(data.decode("utf-8", "replace"))
        stream.flush()

    return write


class Tail:
    """The last lines of one worker, both streams together, for the report of its failure."""

    def __init__(self, most_lines: int = 400, longest_line_bytes: int = 2000) -> None:
        self._lines: deque[tuple[str, bytes]] = deque(maxlen=most_lines)
        self._longest = longest_line_bytes

    def add(self, stream: str, line: bytes) -> None:
        # A progress bar rewrites its line; only its last state is worth keeping.
        if self._lines and self._lines[-1][0] == stream and self._lines[-1][1].endswith(b"\r"):
            self._lines.pop()
        self._lines.append((stream, line[: self._longest] + line[-1:] if len(line) > self._longest else line))

    def lines(self, *streams: str) -> list[str]:
        """The lines of the given streams, oldest first, as text."""
        return [line.decode("utf-8", "replace").rstrip("\r\n") for name, line in self._lines if name in streams]


class WorkerStream:
    """Turns the bytes of one worker's stdout or stderr into lines on the console, in its file and in its tail."""

    def __init__(
        self,
        name: str,
        rank: int,
        console: Sink,
        tail: Tail,
        *,
        prefix: bool,
        timestamp: bool,
        file: BinaryIO | None,
        keep_back: Callable[[float, Callable[[], None]], None] | None = None,
        hush: bool = False,
    ) -> None:
        self._name, self._rank, self._console, self._tail = name, rank, console, tail
        self._prefix, self._timestamp, self._file = prefix, timestamp, file
        self._keep_back, self._quiet_output = keep_back, QuietOutput() if hush else None
        self._rest = b""
        self._kept: list[bytes] = []
        self.last_words = b""

    def take(self, data: bytes) -> None:
        self._record(data)
        self._take(data if self._quiet_output is None else self._quiet_output.take(data))

    def _take(self, data: bytes) -> None:
        lines = (self._rest + data).splitlines(keepends=True)
        # What has no end yet waits for it; so does \r at the very end, which may be half of \r\n.
        complete = not lines or lines[-1].endswith(b"\n") or len(lines[-1]) > _LONGEST_LINE_BYTES
        self._rest = b"" if complete else lines.pop()
        for line in lines:
            self._tail.add(self._name, line)
        if not self._prefix:
            self._console(data)  # as it comes: a prompt has no line end
        elif lines := self._without_last_words(lines):
            self._console(b"".join(map(self._labelled, lines)))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._quiet_output is not None and (waited := self._quiet_output.end()):
            self._take(waited)
        if self._rest:
            self._tail.add(self._name, self._rest)
            if self._prefix and (lines := self._without_last_words([self._rest + b"\n"])):
                self._console(b"".join(map(self._labelled, lines)))
            self._rest = b""
        if self._kept:
            self.last_words = b"".join([self._kept[0].rstrip() + b"\n", *self._kept[1:]])
            self._kept = []

    def _without_last_words(self, lines: list[bytes]) -> list[bytes]:
        """Those to be printed now. From the first line that may begin last words on, they are kept back, until the
        stream ends, or until it has turned out that the worker lives on."""
        if self._keep_back is None:
            return lines
        if self._kept:
            self._kept += lines
            return []
        start = next((at for at, line in enumerate(lines) if _LAST_WORDS.match(line)), len(lines))
        if start < len(lines):
            self._kept = lines[start:]
            is_last = lines[start].rstrip(b"\r\n").endswith(ENDS.encode())
            self._keep_back(_KEEP_LAST_S if is_last else _KEEP_BACK_S, self._give_out)
        return lines[:start]

    def _give_out(self) -> None:
        if kept := self._kept:
            self._kept = []
            self._console(b"".join(map(self._labelled, kept)))

    def _record(self, data: bytes) -> None:
        if self._file is None:
            return
        try:
            self._file.write(data)
        except OSError as error:  # a full disk must not end the training
            self._console(f"hora: rank {self._rank}'s {self._name} is no longer recorded: {error}\n".encode())
            self._file.close()
            self._file = None

    def _labelled(self, line: bytes) -> bytes:
        when = time.asctime() if self._timestamp else ""
        return f"{when}[{self._rank}]<{self._name}>:".encode() + line


def rank_directory(directory: Path, rank: int, size: int) -> Path:
    """Where one rank's files go; the number is padded so that a listing is in rank order.

    >>> rank_directory(Path("out"), 7, 128).as_posix(), rank_directory(Path("out"), 0, 1).as_posix()
    ('out/rank.007', 'out/rank.0')
    """
    return directory / f"rank.{rank:0{len(str(size - 1))}d}"
