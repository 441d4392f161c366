"""Workers' output: read from their pipes by one thread, prefixed line by line as horovodrun does, kept for the record.

``Pump`` owns the pipes. It never blocks the supervisor: a console that does not read stops the workers' output, not the
watch over their lives. A pipe that a daemon still holds after the job has ended is not waited for.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NamedTuple, TextIO

from hora.engine.frames import ENDS

__all__ = ["Console", "Pump", "Tail", "WorkerStream", "rank_directory"]

Sink = Callable[[bytes], None]

_log = logging.getLogger("hora")

_CHUNK_BYTES = 1 << 16
_LONGEST_LINE_BYTES = 1 << 16  # a longer one is printed in parts, so that memory is bounded
_SOON_S = 0.01
# May begin what a worker says because it ends: an exception, one of the compiler, a crash, a refusal.
_LAST_WORDS = re.compile(rb'Traceback \(most recent call last\):|  File "|Fatal Python error: |usage: |hora: ')
# What TensorFlow says of itself before it looks at TF_CPP_MIN_LOG_LEVEL; errors begin with E or F.
_NOISE = re.compile(rb"WARNING: All log messages before absl::InitializeLog\(\)|[IW]\d{4} [\d:.]+ +\d+ \S+\.cc:\d+\] ")
_KEEP_BACK_S, _KEEP_LAST_S = 3.0, 30.0  # how long what may be last words, or is, waits for the end of its worker
_QUIET_S = 0.25  # how long a pipe that someone holds beyond the job's end must be silent to be given up


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
        self._keep_back, self._hush = keep_back, hush
        self._rest = b""
        self._kept: list[bytes] = []
        self.last_words = b""

    def take(self, data: bytes) -> None:
        self._record(data)
        lines = (self._rest + data).splitlines(keepends=True)
        # What has no end yet waits for it; so does \r at the very end, which may be half of \r\n.
        complete = not lines or lines[-1].endswith(b"\n") or len(lines[-1]) > _LONGEST_LINE_BYTES
        self._rest = b"" if complete else lines.pop()
        if self._hush:
            lines = [line for line in lines if not _NOISE.match(line)]
        for line in lines:
            self._tail.add(self._name, line)
        if not self._prefix:
            self._console(data)  # as it comes: a prompt has no line end
        elif lines := self._without_last_words(lines):
            self._console(b"".join(map(self._labelled, lines)))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
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


class Pump(threading.Thread):
    """Reads every pipe and hands what it reads to the pipe's consumer, in this one thread.

    ``on_broken`` is called once when the console has gone away (``hora run … | head``). Whatever a consumer raises, the
    thread reads on: workers whose pipe nobody reads stand still.
    """

    def __init__(self, on_broken: Callable[[], None]) -> None:
        super().__init__(name="hora-output", daemon=True)
        self._on_broken = on_broken
        self._selector = selectors.DefaultSelector()
        self._wake_r, self._wake_w = os.pipe()
        self._selector.register(self._wake_r, selectors.EVENT_READ, None)
        os.set_blocking(self._wake_w, False)
        self._put: deque[Callable[[], None]] = deque()
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._finishing = False

    def add(self, fd: int, take: Callable[[bytes], None], close: Callable[[], None] = lambda: None) -> None:
        """Take over a pipe's reading end."""
        self.put(lambda: self._register(fd, take, close))

    def put(self, action: Callable[[], None]) -> None:
        """Have this done in the pump's thread, after what was put before."""
        self._put.append(action)
        with contextlib.suppress(BlockingIOError):  # full: it is awake anyway
            os.write(self._wake_w, b"x")

    def keep_back(self, seconds: float, give_out: Callable[[], None]) -> None:
        """Have this done later, if that comes before the end. For who is called in this thread."""
        self._later.append((time.monotonic() + seconds, give_out))

    def finish(self, meanwhile: Callable[[], None] | None = None) -> None:
        """The job is over: read what is left, then end the thread and close everything. ``meanwhile`` is called again
        and again until that is done."""
        self._finishing = True
        self.put(lambda: None)
        self.join(_SOON_S if meanwhile is not None else None)  # mostly there is nothing left
        while meanwhile is not None and self.is_alive():
            meanwhile()
        self.join()
        os.close(self._wake_r)
        os.close(self._wake_w)
        self._selector.close()

    def run(self) -> None:
        while not self._finishing or self._put or len(self._selector.get_map()) > 1:
            ready = self._selector.select(_QUIET_S if self._finishing else self._until_later())
            if not ready and self._finishing:
                break
            for key, _ in ready:
                if key.data is None:
                    os.read(self._wake_r, 4096)
                    while self._put:
                        self._guarded(self._put.popleft())
                elif not self._read(key):
                    self._close(key)
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                self._close(key)

    def _until_later(self) -> float | None:
        """Do what is due by now; how long until there is more."""
        now = time.monotonic()
        due = [give_out for when, give_out in self._later if when <= now]
        self._later = [(when, give_out) for when, give_out in self._later if when > now]
        for give_out in due:
            self._guarded(give_out)
        return min(when for when, _ in self._later) - now if self._later else None

    def _register(self, fd: int, take: Callable[[bytes], None], close: Callable[[], None]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, (take, close))

    def _read(self, key: selectors.SelectorKey) -> bool:
        try:
            data = os.read(key.fd, _CHUNK_BYTES)
        except OSError:  # nothing more can come from it
            return False
        if data:
            self._guarded(lambda: key.data[0](data))
        return bool(data)

    def _close(self, key: selectors.SelectorKey) -> None:
        self._selector.unregister(key.fd)
        self._guarded(key.data[1])
        os.close(key.fd)

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError:  # go on reading, or the workers would block on a full pipe
            on_broken, self._on_broken = self._on_broken, lambda: None
            on_broken()
        except Exception:
            _log.exception("a part of the output could not be shown")
