"""One timeline file as operations: Hora's, one a rank, and Horovod's, which rank 0 writes for all.

The formats are the same Chrome trace events, with differences that are all accepted here: the closing bracket may be
missing (Horovod before 0.20), all events may stand on one line (Horovod since), ends may have no name, the file may be
cut anywhere, names may hold quotes that nobody escaped, and it may be compressed (``.gz``). What cannot be used is
counted and skipped. No input leads to anything but operations or a ``BadData`` that says what was found instead.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgspec

from hora.errors import BadData

__all__ = ["MERGED", "Activity", "TimelineOperation", "Track", "nbytes", "read"]

MERGED = "hora_merged"  # the mark of a file that `hora timeline --merge` wrote
_CHUNK = 1 << 20
_LONGEST = 1 << 16  # characters an event may have; a longer one is a broken string
_WIDTHS = {"bool": 1, "uint8": 1, "int8": 1, "float16": 2, "bfloat16": 2, "int16": 2, "uint16": 2, "int32": 4,
           "float32": 4, "int64": 8, "float64": 8}  # fmt: skip


class Activity(msgspec.Struct):
    """One thing that was done inside an operation, such as ``QUEUE`` or ``NCCL_ALLREDUCE``."""

    label: str
    begin_us: int
    end_us: int


class TimelineOperation(msgspec.Struct):
    """One operation as one file tells it. ``end_us`` is -1 if it never ended, ``agreed_us`` if it was not agreed on."""

    name: str
    kind: str  # ALLREDUCE, ALLGATHER, ...
    first_us: int  # the first rank that is known to have submitted it
    ticks: dict[int, int]  # when each rank had submitted it, of those that are known
    agreed_us: int = -1
    end_us: int = -1
    activities: list[Activity] = []
    fused: int = 0  # operations that moved together; 0 if the file does not say
    nbytes: int = -1  # -1: unknown
    failed: bool = False
    round: int = 0  # the how-manieth of this name
    begun_us: int = -1  # when the last rank began to move it, and which that was; known from all ranks' files together
    begun_by: int = -1
    last: int = -2  # the rank that arrived last, once somebody asked
    over_us: int = -1  # when the first rank had the result, likewise


class Track(msgspec.Struct):
    """What one file holds."""

    path: str
    rank: int
    writer: str  # "Hora" or "Horovod"
    epoch_us: int | None = None  # the wall clock at time 0
    operations: list[TimelineOperation] = []  # those that ended, in the order of their ends
    unfinished: list[TimelineOperation] = []
    skipped: int = 0  # pieces that are no events, or events that do not fit
    full: bool = False  # it stopped at its limit
    generation: int = 1  # of an elastic job

    @property
    def everything(self) -> list[TimelineOperation]:
        """Those that ended, then those that did not."""
        return [*self.operations, *self.unfinished]


def nbytes(dtype: str, shape: str) -> int:
    """The size of a tensor from the words of a timeline; -1 if they do not say.

    >>> nbytes("float32", "[3, 4]"), nbytes("bfloat16", "[]"), nbytes("float32", "[?]"), nbytes("complex", "[1]")
    (48, 2, -1, -1)
    """
    width = _WIDTHS.get(dtype.lower().removeprefix("hvd_").removeprefix("horovod_"))
    if width is None or not re.fullmatch(r"\[(\d{1,15}(, *\d{1,15})*)?\]", shape):
        return -1
    return width * math.prod(int(side) for side in re.findall(r"\d+", shape))


def read(path: Path | str) -> Track:
    """The operations of one file.

    >>> import tempfile
    >>> text = '''[
    ... {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "grad"}},
    ... {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 10, "pid": 1},
    ... {"ph": "X", "name": "0", "ts": 10, "pid": 1, "dur": 0},
    ... {"ph": "X", "name": "1", "ts": 25, "pid": 1, "dur": 0},
    ... {"ph": "E", "ts": 26, "pid": 1},
    ... {"ph": "B", "name": "ALLREDUCE", "ts": 27, "pid": 1},
    ... {"ph": "E", "ts": 90, "pid": 1, "args": {"dtype": "float32", "shape": "[8]"}},'''
    >>> with tempfile.TemporaryDirectory() as place:
    ...     file = Path(place) / "t.json"
    ...     _ = file.write_text(text)
    ...     track = read(file)
    >>> (one,) = track.operations
    >>> track.writer, one.name, one.kind, one.ticks, one.agreed_us, one.end_us, one.nbytes
    ('Horovod', 'grad', 'ALLREDUCE', {0: 10, 1: 25}, 26, 90, 32)
    """
    path = Path(path)
    builder = _Builder(path)
    try:
        with _open(path) as file:
            if MERGED in file.read(64):
                raise BadData(
                    f"{path} was written by `hora timeline --merge`, and cannot be taken apart again. "
                    "Give the files that the workers wrote."
                )
            file.seek(0)
            for event in _events(file):
                builder.take(event)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        if not builder.events:
            raise BadData(
                f"{path} is not a timeline: it cannot be unpacked ({error}). Give the file as written."
            ) from error
        builder.track.skipped += 1  # a compressed file that was cut: what came before is good
    except OSError as error:
        reason = "is a directory" if path.is_dir() else (error.strerror or str(error)).lower()
        raise BadData(
            f"cannot read the timeline {path}: {reason}. Give the files that the workers wrote: timeline.json of "
            "rank 0, timeline.rank1.json and so on."
        ) from error
    return builder.finish()


def _open(path: Path) -> IO[str]:
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    if packed:
        return gzip.open(path, "rt", encoding="utf-8", errors="replace")
    return path.open(encoding="utf-8", errors="replace")


def _events(file: IO[str]) -> Iterator[dict[str, Any] | None]:
    """Every JSON object in the text, whatever stands between them; None for a piece that is none."""
    decode = json.JSONDecoder().raw_decode
    text, at, more, seen = "", 0, True, False
    while True:
        start = text.find("{", at)
        if start < 0:
            text, at, start = "", 0, 0
            chunk = file.read(_CHUNK)
            if not chunk:
                return
            text = chunk
            continue
        if more and len(text) - start < _LONGEST:
            chunk = file.read(_CHUNK)
            more = bool(chunk)
            text, at = text[start:] + chunk, 0
            start = 0
        try:
            found, at = decode(text, start)
        except (ValueError, RecursionError):
            inside = text.find('"traceEvents"', start, start + _LONGEST) if not seen else -1
            if inside >= 0:  # an object around the events that is too large to be taken at once, or was cut
                at = inside
                continue
            line, at = text.find("\n", start), start + 1
            if text.find("{", at, line if line >= 0 else len(text)) < 0:
                at = line + 1 if line >= 0 else len(text)
            yield None
            continue
        seen = True
        if isinstance(found.get("traceEvents"), list):
            yield from (event if isinstance(event, dict) else None for event in found["traceEvents"])
        else:
            yield found


def _whole(value: object) -> int | None:
    """A number of microseconds that can be calculated with."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1 < value < 1 << 53:
        return None
    return int(value)


class _Open(msgspec.Struct):
    """What is open on one tensor."""

    operation: TimelineOperation | None = None
    stack: list[tuple[str, int]] = []  # what has begun and not ended: name and when
    last_us: int = 0
    again: bool = False  # its agreement is being told a second time


class _Builder:
    """Puts events together; every tensor is a process of the trace and has at most one operation open."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.track = Track(path=str(path), rank=0, writer="Horovod")
        self.events = 0
        self._names: dict[int, str] = {}
        self._open: dict[int, _Open] = {}
        self._rounds: dict[str, int] = {}

    def take(self, event: dict[str, Any] | None) -> None:
        phase = event.get("ph") if event is not None else None
        if event is None or not isinstance(phase, str):
            self.track.skipped += 1
            return
        if phase == "M":
            self._metadata(event)
            return
        if event.get("name") == "TIMELINE_FULL":
            self.track.full = True
        at, pid = _whole(event.get("ts")), event.get("pid")
        name = event.get("name", "")
        if phase == "i":
            return
        if at is None or not isinstance(pid, int) or not isinstance(name, str) or phase not in ("B", "E", "X"):
            self.track.skipped += 1
            return
        self.events += 1
        here = self._open.setdefault(pid, _Open(stack=[]))
        if self._told_already(here, phase, name, at):
            return
        at = here.last_us = max(at, here.last_us)  # time does not run backwards
        if phase == "B":
            self._begin(pid, here, event, at)
        elif phase == "E":
            self._end(here, event, at)
        elif here.operation is not None and here.operation.agreed_us < 0 and name.isascii() and name.isdigit():
            here.operation.ticks[int(name[:9])] = at
        else:
            self.track.skipped += 1

    def _told_already(self, here: _Open, phase: str, name: str, at: int) -> bool:
        """Hora 0.1 wrote the agreement of operations on shared memory twice: before they moved and when they ended."""
        agreed_us = here.operation.agreed_us if here.operation is not None else -1
        if phase == "B" and name.startswith("NEGOTIATE_") and here.stack and at <= agreed_us:
            here.again = True
        elif here.again and name == "QUEUE":  # the last line of it
            here.again = False
            return phase == "B"
        return here.again

    def _metadata(self, event: dict[str, Any]) -> None:
        args, pid = event.get("args"), event.get("pid")
        if event.get("name") != "process_name" or not isinstance(args, dict) or not isinstance(pid, int):
            return
        self.events += 1
        name = args.get("name")
        if pid == 0:
            self.track.epoch_us = _whole(args.get("start_time_since_epoch_in_micros"))
            if isinstance(name, str) and (found := re.fullmatch(r"rank (\d{1,9})", name)):
                self.track.writer, self.track.rank = "Hora", int(found[1])
                self.track.generation = _whole(args.get("generation")) or 1
        elif isinstance(name, str):  # what a terminal would act on, or could not print, is not shown
            self._names[pid] = "".join(letter if letter.isprintable() else "?" for letter in name)

    def _begin(self, pid: int, here: _Open, event: dict[str, Any], at: int) -> None:
        label: str = event.get("name", "")
        negotiates = label.startswith("NEGOTIATE_")
        if here.stack and here.operation is not None and not negotiates:
            here.stack.append((label, at))
            args = event.get("args")
            here.operation.fused = (_whole(args.get("fused")) if isinstance(args, dict) else 0) or here.operation.fused
            return
        if here.stack or (negotiates and here.operation is not None):  # the one before never ended
            self._drop(here)
        if negotiates or here.operation is None:
            kind, name = label.removeprefix("NEGOTIATE_"), self._names.get(pid, f"tensor {pid}")
            here.operation = TimelineOperation(name=name, kind=kind, first_us=at, ticks={}, activities=[])
            if not negotiates:
                here.operation.agreed_us = at
        here.operation.kind = label.removeprefix("NEGOTIATE_")
        here.stack.append((label, at))

    def _end(self, here: _Open, event: dict[str, Any], at: int) -> None:
        operation = here.operation
        if not here.stack or operation is None:
            self.track.skipped += 1
            return
        label, begin = here.stack.pop()
        if here.stack:
            operation.activities.append(Activity(label, begin, at))
            return
        if label.startswith("NEGOTIATE_"):
            operation.agreed_us = at
            return
        operation.end_us = at
        self._describe(operation, event.get("args"))
        self._number(operation)
        self.track.operations.append(operation)
        here.operation = None

    def _describe(self, operation: TimelineOperation, args: object) -> None:
        if not isinstance(args, dict):
            return
        operation.failed = bool(args.get("failed"))
        known = _whole(args.get("bytes"))
        if known is not None:
            operation.nbytes = known
        elif "tensors" not in args:  # of a group only the first tensor's shape is there
            operation.nbytes = nbytes(str(args.get("dtype", "")), str(args.get("shape", "")))

    def _number(self, operation: TimelineOperation) -> None:
        operation.round = self._rounds.get(operation.name, 0)
        self._rounds[operation.name] = operation.round + 1

    def _drop(self, here: _Open) -> None:
        if here.operation is not None:
            self._number(here.operation)
            self.track.unfinished.append(here.operation)
        here.operation = None
        here.stack.clear()

    def finish(self) -> Track:
        track = self.track
        if not self.events:
            size = self._path.stat().st_size
            if size == 0:
                what = "is empty: no operation ran while it was recorded, or the worker died at once"
            elif track.skipped:
                what = "is not a timeline: it holds no trace events"
            else:
                what = "holds no events: the worker died before it recorded any"
            raise BadData(f"{self._path} {what}. Record one with `hora run --timeline-filename timeline.json …`.")
        for here in self._open.values():
            if here.operation is not None:
                self._drop(here)
        return track
