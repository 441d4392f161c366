"""All ranks in one Chrome trace that Perfetto opens.

A rank is a process, and each of its tensors a track of its own, the same number on every rank. Above them stands one
track that says what the rank's communication did at every instant. Slices are complete events (``X``) that nest
strictly on their track, whatever the input was like: Perfetto refuses others. Arrivals are instants.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hora.errors import EnvironmentUnfit, UsageError
from hora.files import replacing_path
from hora.timeline.clock import ClockCorrection
from hora.timeline.read import MERGED, TimelineOperation, Track
from hora.timeline.sweep import TimelineState, flights, sweep

__all__ = ["events", "write"]

_NAMES = {
    TimelineState.MOVE: "moving data",
    TimelineState.COPY: "copying",
    TimelineState.QUEUE: "queued",
    TimelineState.WAIT: "waiting",
}


def write(path: Path, tracks: Sequence[Track], clocks: Sequence[ClockCorrection]) -> None:
    """One file, complete or absent; compressed if it is named ``.gz``, which Perfetto opens as well.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     write(Path(place) / "all.json", [Track("", 0, "Hora")], [ClockCorrection(0, "reference")])
    ...     [row["name"] for row in json.loads((Path(place) / "all.json").read_text())["traceEvents"]]
    ['process_name', 'process_sort_index', 'thread_name', 'thread_sort_index']
    """
    if path.is_dir():
        raise UsageError(f"--merge {path} is a directory. Give a file to write, such as merged.json.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            replacing_path(path) as part,
            gzip.open(part, "wt", 6, "utf-8") if path.suffix == ".gz" else part.open("w", encoding="utf-8") as file,
        ):
            # The mark comes first, so that a reader sees it whatever happens to the rest.
            file.write(f'{{"{MERGED}": 1, "displayTimeUnit": "ms", "traceEvents": [')
            for number, row in enumerate(events(tracks, clocks)):
                file.write((",\n" if number else "\n") + json.dumps(row))
            file.write("\n]}\n")
    except OSError as error:
        raise EnvironmentUnfit(f"cannot write {path}: {error.strerror}. Give --merge another place.") from error


def events(tracks: Sequence[Track], clocks: Sequence[ClockCorrection]) -> Iterator[dict[str, Any]]:
    """The rows of the trace.

    >>> op = TimelineOperation("a", "ALLREDUCE", 0, {0: 0, 1: 40}, 40, 100)
    >>> rows = list(events([Track("", 0, "Hora", operations=[op])], [ClockCorrection(0, "reference")]))
    >>> [(row["name"], row["ts"], row["dur"]) for row in rows if row["ph"] == "X" and row["tid"]]
    [('NEGOTIATE_ALLREDUCE', 0, 40), ('ALLREDUCE', 40, 60)]
    """
    tids: dict[str, int] = {}
    for track in tracks:
        for op in track.everything:
            tids.setdefault(op.name, len(tids) + 1)
    for track, clock in zip(tracks, clocks, strict=True):
        yield from _process(track, clock, tids)
        yield from _overview(track)
        cursor: dict[int, int] = {}
        for op in sorted(track.everything, key=lambda op: op.first_us):
            yield from _operation(track.rank, tids[op.name], op, cursor)


def _process(track: Track, clock: ClockCorrection, tids: dict[str, int]) -> Iterator[dict[str, Any]]:
    name = f"rank {track.rank}" if track.writer == "Hora" else f"rank {track.rank} (Horovod, for all ranks)"
    args = {"name": name, "file": Path(track.path).name, "clock": clock.how, "clock_error_us": clock.error_us}
    head = {"ph": "M", "pid": track.rank}
    yield {"name": "process_name", **head, "tid": 0, "args": args}
    yield {"name": "process_sort_index", **head, "tid": 0, "args": {"sort_index": track.rank}}
    mine = {op.name for op in track.everything}
    for label, tid in [("communication", 0), *((name, tids[name]) for name in tids if name in mine)]:
        yield {"name": "thread_name", **head, "tid": tid, "args": {"name": label}}
        yield {"name": "thread_sort_index", **head, "tid": tid, "args": {"sort_index": tid}}


def _overview(track: Track) -> Iterator[dict[str, Any]]:
    for part in sweep(flights(track, track.rank, {})):
        if part.state is not TimelineState.IDLE:
            label = _NAMES[part.state] + (f" for rank {part.culprit}" if part.culprit >= 0 else "")
            yield _slice(track.rank, 0, label, part.begin_us, part.end_us)


def _operation(pid: int, tid: int, op: TimelineOperation, cursor: dict[int, int]) -> Iterator[dict[str, Any]]:
    begin = max(op.first_us, cursor.get(tid, 0))
    agreed = max(op.agreed_us, begin)
    if op.agreed_us < 0:  # it waits for ever
        latest = max([begin, *op.ticks.values()])
        yield _slice(pid, tid, f"NEGOTIATE_{op.kind}", begin, latest, {"never agreed on": True})
        end = latest
    else:
        yield _slice(pid, tid, f"NEGOTIATE_{op.kind}", begin, agreed)
        end = max(op.end_us, agreed, *(activity.end_us for activity in op.activities))
        args: dict[str, Any] = {} if op.nbytes < 0 else {"bytes": op.nbytes}
        if op.fused:
            args["fused"] = op.fused
        if op.failed or op.end_us < 0:
            args["failed" if op.failed else "never ended"] = True
        yield _slice(pid, tid, op.kind, agreed, end, args)
        yield from _nested(pid, tid, op, agreed, end)
    for rank, tick in sorted(op.ticks.items(), key=lambda item: item[1]):
        at = min(max(tick, begin), end)
        yield {"name": f"rank {rank} arrives", "ph": "i", "s": "t", "pid": pid, "tid": tid, "ts": at}
    cursor[tid] = end


def _nested(pid: int, tid: int, op: TimelineOperation, agreed: int, end: int) -> Iterator[dict[str, Any]]:
    """Activities inside the operation, each inside what is open when it begins."""
    ends = [end]
    for activity in sorted(op.activities, key=lambda a: (a.begin_us, -a.end_us)):
        begin = max(activity.begin_us, agreed)
        while len(ends) > 1 and ends[-1] <= begin:
            ends.pop()
        stop = min(activity.end_us, ends[-1])
        if stop >= begin:
            ends.append(stop)
            yield _slice(pid, tid, activity.label, begin, stop)


def _slice(pid: int, tid: int, name: str, begin: int, end: int, args: dict[str, Any] | None = None) -> dict[str, Any]:
    row = {"name": name, "ph": "X", "pid": pid, "tid": tid, "ts": begin, "dur": end - begin}
    return {**row, "args": args} if args else row
