"""The timeline: what happened to each tensor, in Chrome's trace format with Horovod's event names.

One file a rank: the path given is rank 0's, as in Horovod, the others' have their rank before the suffix. The file is
valid JSON after every write, so a crash loses at most the last twentieth of a second. It stops growing at a limit. What
cannot be written raises OSError, and the file stays as it was before: whoever writes then drops the timeline.

Each tensor is a process of the trace. ``NEGOTIATE_<OP>`` lasts from the first rank's arrival to the last, with a tick
for each rank; ``<OP>`` from agreement to the end, and in it the time the operation waited for its turn (``QUEUE``) and
the time data moved.
"""

from __future__ import annotations

import contextlib
import io
import json
import time
from collections.abc import Iterable
from pathlib import Path

from hora.engine.backend import EventKind, OperationEvent
from hora.engine.request import Request
from hora.errors import EnvironmentUnfit, UsageError
from hora.types import ReduceOp

__all__ = ["Timeline", "path_for_rank"]

_END = b"\n]"


def path_for_rank(path: str, rank: int, generation: int = 1) -> Path:
    """Where a rank writes; in an elastic job each generation has files of its own.

    >>> path_for_rank("run/timeline.json", 0).name, path_for_rank("run/timeline.json", 12).name
    ('timeline.json', 'timeline.rank12.json')
    >>> path_for_rank("timeline.json", 1, 3).name
    'timeline.generation3.rank1.json'
    """
    first = Path(path)
    if generation > 1:
        first = first.with_name(f"{first.stem}.generation{generation}{first.suffix}")
    return first if rank == 0 else first.with_name(f"{first.stem}.rank{rank}{first.suffix}")


class Timeline:
    """Writes one rank's events; ``activity`` names the movement of data, such as ``SHM``. ``generation`` is that of an
    elastic job."""

    def __init__(
        self, path: str, rank: int, *, activity: str, mark_cycles: bool, max_bytes: int, generation: int = 1
    ) -> None:
        target = path_for_rank(path, rank, generation)
        if target.is_dir():
            raise UsageError(f"timeline {target} is a directory. Give a file to write, such as timeline.json.")
        self.path = target
        self._rank, self._activity, self._max_bytes, self._marks = rank, activity, max_bytes, mark_cycles
        self._pids: dict[str, int] = {}
        self._submitted: dict[str, OperationEvent] = {}  # not agreed on yet
        self._arrived: dict[str, list[OperationEvent]] = {}
        self._moving: set[str] = set()
        self._ended_us: dict[str, int] = {}
        self._start_ns = time.monotonic_ns()
        self._written = 0
        self._full = False
        epoch_us = time.time_ns() // 1000
        first: dict[str, object] = {
            "name": "process_name", "ph": "M", "pid": 0, "tid": 0,
            "args": {"name": f"rank {rank}", "start_time_since_epoch_in_micros": epoch_us, "generation": generation},
        }  # fmt: skip
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            self._file = io.FileIO(target, "wb")
            try:
                self._append([first])
            except OSError:
                self._file.close()
                raise
        except OSError as error:
            raise EnvironmentUnfit(f"cannot write the timeline {target}: {error.strerror}.") from error

    def write(self, events: Iterable[OperationEvent]) -> None:
        """Append events; the file is valid JSON afterwards."""
        rows: list[dict[str, object]] = []
        for event in sorted(events, key=lambda e: e.time_ns):
            rows += self._rows(event)
        self._append(rows)

    def close(self) -> None:
        """Finish the file, with what was never agreed on left open. Safe to call twice."""
        if not self._file.closed:
            rows = [row for event in self._submitted.values() for row in self._negotiation(event, [event])]
            self._append(rows)
            self._file.close()

    def drop(self) -> None:
        """Leave the file as it is. Safe to call twice."""
        self._file.close()

    # ---- one event ----

    def _rows(self, event: OperationEvent) -> list[dict[str, object]]:
        name, operation, at = event.request.name, _operation(event.request), self._us(event)
        movement = f"{self._activity}_{operation}"
        match event.what:
            case EventKind.SUBMITTED:
                self._submitted[name] = event
                return []
            case EventKind.ARRIVED:
                self._arrived.setdefault(name, []).append(event)
                return []
            case EventKind.AGREED:
                self._submitted.pop(name, None)
                rows = self._negotiation(event, self._arrived.pop(name, []))
                at = max(at, self._ended_us.get(name, 0))
                rows.append(self._row("E", f"NEGOTIATE_{operation}", name, at))
                rows.append(self._row("B", operation, name, at))
                return [*rows, self._row("B", "QUEUE", name, at)]
            case EventKind.BEGIN:
                self._moving.add(name)
                begin = self._row("B", movement, name, at, args={"fused": event.detail})
                return [self._row("E", "QUEUE", name, at), *self._mark(name, at), begin]
            case EventKind.END:
                if name in self._submitted:  # it failed before it was agreed on
                    return []
                self._ended_us[name] = at
                last = self._row("E", operation, name, at, args=_shape_of(event.request, event.detail))
                if name in self._moving:
                    self._moving.discard(name)
                    return [self._row("E", movement, name, at), last]
                return [*self._mark(name, at), self._row("E", "QUEUE", name, at), last]  # its data came with arrivals

    def _negotiation(self, event: OperationEvent, arrivals: list[OperationEvent]) -> list[dict[str, object]]:
        """From the first rank's arrival, with a tick for each rank's."""
        name = event.request.name
        rows: list[dict[str, object]] = []
        if name not in self._pids:
            pid = self._pids[name] = len(self._pids) + 1
            rows.append({"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": name}})
            rows.append({"name": "process_sort_index", "ph": "M", "pid": pid, "tid": 0, "args": {"sort_index": pid}})
        earliest = self._ended_us.get(name, 0)  # a fast peer may be here before we ended the round before
        ticks = sorted((max(self._us(a), earliest), a.rank) for a in arrivals)
        begin = ticks[0][0] if ticks else max(self._us(event), earliest)
        rows.append(self._row("B", f"NEGOTIATE_{_operation(event.request)}", name, begin))
        return rows + [self._row("X", str(rank), name, at, dur=0) for at, rank in ticks]

    def _mark(self, name: str, at: int) -> list[dict[str, object]]:
        return [self._row("i", "CYCLE_START", name, at, s="g")] if self._marks else []

    def _us(self, event: OperationEvent) -> int:
        return max(0, event.time_ns - self._start_ns) // 1000

    def _row(self, ph: str, label: str, name: str, at: int, **more: object) -> dict[str, object]:
        return {"name": label, "ph": ph, "pid": self._pids[name], "tid": 0, "ts": at, **more}

    def _append(self, rows: list[dict[str, object]]) -> None:
        if self._full or not rows:
            return
        text = ",\n".join(json.dumps(row) for row in rows)
        data = (b"[\n" if not self._written else b",\n") + text.encode()
        if self._written + len(data) > self._max_bytes:
            self._full = True
            data = b',\n{"name": "TIMELINE_FULL", "ph": "i", "pid": 0, "tid": 0, "ts": 0, "s": "g"}'
        try:
            self._put(data + _END)
        except OSError:
            if self._written:
                with contextlib.suppress(OSError):  # what is overwritten has its place on the disk
                    self._put(_END)
                    self._file.truncate(self._written + len(_END))
            raise
        self._written += len(data)

    def _put(self, data: bytes) -> None:
        """Write in place of the end of the file."""
        if self._written:
            self._file.seek(self._written)
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]


def _operation(request: Request) -> str:
    return "ADASUM" if request.how.op is ReduceOp.ADASUM else request.kind.name


def _shape_of(request: Request, failed: int) -> dict[str, object]:
    first = request.segments[0] if request.segments else None
    args: dict[str, object] = {}
    if first is not None:
        args = {"dtype": first.dtype.name.lower(), "shape": str(list(first.shape))}
    if len(request.segments) > 1:
        args["tensors"] = len(request.segments)
        args["bytes"] = sum(segment.nbytes for segment in request.segments)
    if failed:
        args["failed"] = failed
    return args
