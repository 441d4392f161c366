"""Timelines with exactly known answers, as Hora and as three generations of Horovod write them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Op(NamedTuple):
    """One operation in true time; ``begins`` and ``ends`` by rank."""

    name: str
    arrivals: dict[int, int]
    begins: dict[int, int]
    ends: dict[int, int]
    shape: tuple[int, ...] = (1024,)
    fused: int = 1
    kind: str = "ALLREDUCE"


def op(name: str, arrivals: Sequence[int], begin: int, end: int, **more: Any) -> Op:
    """All ranks begin and end together."""
    ranks = range(len(arrivals))
    return Op(name, dict(enumerate(arrivals)), dict.fromkeys(ranks, begin), dict.fromkeys(ranks, end), **more)


def _rows(ops: Sequence[Op], rank: int, start_us: int, ticks: str, label: str) -> list[tuple[int, int, dict[str, Any]]]:
    pids = {name: pid for pid, name in enumerate(dict.fromkeys(o.name for o in ops), 1)}
    rows: list[tuple[int, int, dict[str, Any]]] = []
    for o in ops:
        pid, agreed = pids[o.name], max(o.arrivals.values())
        known = {"all": o.arrivals, "own": {rank: o.arrivals[rank]}, "agreed": {rank: agreed}, "none": {}}[ticks]
        args = {"dtype": "float32", "shape": str(list(o.shape))}
        events = [
            (min(known.values(), default=min(o.arrivals.values())), {"name": f"NEGOTIATE_{o.kind}", "ph": "B"}),
            *((at, {"name": str(r), "ph": "X", "dur": 0}) for r, at in sorted(known.items(), key=lambda i: i[1])),
            (agreed, {"name": f"NEGOTIATE_{o.kind}", "ph": "E"}),
            (agreed, {"name": o.kind, "ph": "B"}),
            (agreed, {"name": "QUEUE", "ph": "B"}),
            (o.begins[rank], {"name": "QUEUE", "ph": "E"}),
            (o.begins[rank], {"name": f"{label}_{o.kind}", "ph": "B", "args": {"fused": o.fused}}),
            (o.ends[rank], {"name": f"{label}_{o.kind}", "ph": "E"}),
            (o.ends[rank], {"name": o.kind, "ph": "E", "args": args}),
        ]
        rows += [(at - start_us, pid, row) for at, row in events]
    return sorted(rows, key=lambda row: row[0])


def _names(ops: Sequence[Op]) -> list[str]:
    return list(dict.fromkeys(o.name for o in ops))


def hora(
    path: Path, ops: Sequence[Op], rank: int = 0, start_us: int = 0, *, ticks: str = "all", label: str = "SHM",
    epoch_us: int = 1_700_000_000_000_000,
) -> Path:  # fmt: skip
    """One rank's file; ``ticks`` says whose arrivals are in it: all, own, own at agreement (agreed)."""
    head = {"name": f"rank {rank}", "start_time_since_epoch_in_micros": epoch_us + start_us}
    rows: list[dict[str, Any]] = [{"name": "process_name", "ph": "M", "pid": 0, "tid": 0, "args": head}]
    for pid, name in enumerate(_names(ops), 1):
        rows.append({"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": name}})
    for at, pid, row in _rows(ops, rank, start_us, ticks, label):
        rows.append({**row, "pid": pid, "tid": 0, "ts": at})
    path.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]")
    return path


def horovod(path: Path, ops: Sequence[Op], version: str, *, ticks: str = "all", label: str = "MPI") -> Path:
    """Rank 0's file: 0.15 never closes its bracket; 0.20 and later write all events on one line, closed after each."""
    out = []
    if version != "0.15":
        out.append(
            '{"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros":17000000}},\n'
        )
        out.append('{"name": "process_sort_index", "ph": "M", "pid": 0, "args": {"sort_index": 0}},\n')
    seen = set()
    names = _names(ops)
    for at, pid, row in _rows(ops, 0, 0, ticks, label):
        if pid not in seen:
            seen.add(pid)
            out.append(
                f'{{"name": "process_name", "ph": "M", "pid": {pid}, "args": {{"name": "{names[pid - 1]}"}}}},\n'
            )
            out.append(f'{{"name": "process_sort_index", "ph": "M", "pid": {pid}, "args": {{"sort_index": {pid}}}}},\n')
        text = f'{{"ph": "{row["ph"]}"'
        if row["ph"] != "E":
            text += f', "name": "{row["name"]}"'
        text += f', "ts": {at}, "pid": {pid}'
        text += ', "dur": 0' if row["ph"] == "X" else ""
        if "shape" in row.get("args", {}):
            text += f', "args": {json.dumps(row["args"])}'
        out.append(text + ("},\n" if version == "0.15" else "},"))
    if version != "0.15":
        out.append(f'{{"ph": "i", "name": "CYCLE_START", "ts": {at}, "s": "g"}}]')
    path.write_text("[\n" + "".join(out))
    return path


def check_nesting(rows: list[dict[str, Any]]) -> int:
    """Perfetto's rule: on a track, two slices are apart or one holds the other. Returns how many slices there are."""
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for row in rows:
        assert {"name", "ph", "pid", "tid"} <= row.keys(), row
        assert row["ph"] in ("M", "X", "i"), row
        if row["ph"] == "X":
            assert row["ts"] >= 0 and row["dur"] >= 0, row
            tracks.setdefault((row["pid"], row["tid"]), []).append((row["ts"], row["ts"] + row["dur"]))
    for slices in tracks.values():
        open_: list[int] = []
        for begin, end in sorted(slices, key=lambda s: (s[0], -s[1])):
            while open_ and open_[-1] <= begin:
                open_.pop()
            assert not open_ or end <= open_[-1], (begin, end, open_)
            open_.append(end)
    return sum(len(slices) for slices in tracks.values())
