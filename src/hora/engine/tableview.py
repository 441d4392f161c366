"""Reading and describing what is in the table: how requests are kept in it, and what a snapshot of it says."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

import msgspec

from hora.engine.backend import Pending, RankState, Snapshot
from hora.engine.request import Request

__all__ = ["DESCRIPTION_BYTES", "TablePosition", "describe", "parse_snapshot", "process_state"]

DESCRIPTION_BYTES = 3072  # core.h: DESCRIPTION_BYTES
IN_JOIN = 0xFFFFFFFF


class TablePosition(NamedTuple):
    """Where an operation is in the table, and the stamp that tells it from others that were there."""

    entry: int
    stamp: int


def describe(request: Request) -> bytes:
    """The request as the table keeps it: cut where it would not fit, for it is only for reading."""
    encoded = request.encode()
    if len(encoded) <= DESCRIPTION_BYTES:
        return encoded
    name = request.name if len(request.name) <= 400 else request.name[:400] + "…"
    splits = request.splits[:64] if request.splits else None
    members, shown = request.members, min(len(request.segments), 32)
    while True:
        encoded = msgspec.structs.replace(
            request, name=name, line=request.line[-200:], splits=splits, members=members,
            segments=request.segments[:shown], cut=len(request.segments) - shown,
        ).encode()  # fmt: skip
        if len(encoded) <= DESCRIPTION_BYTES:
            return encoded
        members, shown = members[: len(members) // 2], shown // 2


def process_state(pid: int) -> str:
    """What the kernel says of a process: "stopped", "gone" or "running"."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "gone"
    return "stopped" if stat.rpartition(")")[2].split()[0] in "Tt" else "running"


def parse_snapshot(data: bytes) -> tuple[Snapshot, dict[tuple[str, tuple[int, ...]], TablePosition]]:
    """What ``hora_snapshot`` wrote (its format is described there), and where in the table each operation is.

    A rank that did not let go of the table's lock is silent, whatever the kernel says of it: it may be frozen.
    """
    at = 0

    def number() -> int:
        nonlocal at
        at += 8
        return int(struct.unpack_from("<q", data, at - 8)[0])

    if not data:
        return Snapshot(0, (), ()), {}
    progress, holder = number(), number()
    raw_ranks = []
    for rank in range(number()):
        state, pid = number(), number()
        threads = [number() for _ in range(number())]
        waits = [(number(), number(), number()) for _ in range(number())]
        raw_ranks.append((rank, state, pid, threads, waits))
    pending: list[Pending] = []
    entries: dict[tuple[str, tuple[int, ...]], TablePosition] = {}
    for _ in range(number()):
        entry, stamp, age_ns, _kind = number(), number(), number(), number()
        members = tuple(number() for _ in range(number()))
        requests = {}
        for _ in range(number()):
            rank, length = number(), number()
            requests[rank] = Request.decode(data[at : at + length])
            at += length
        name = next(iter(requests.values())).name
        missing = tuple(r for r in members if r not in requests)
        pending.append(Pending(name, members, requests, age_ns / 1e9, missing))
        entries[name, members] = TablePosition(entry, stamp)
    by_entry = {where: key for key, where in entries.items()}
    ranks = []
    for rank, _state, pid, threads, waits in raw_ranks:
        blocked_threads = {thread for thread, _, _ in waits}
        alive = {thread for thread in threads if Path(f"/proc/{pid}/task/{thread}").exists()}
        waiting_on = tuple(
            by_entry.get(TablePosition(entry, stamp), ("join" if entry == IN_JOIN else "", ()))
            for _, entry, stamp in waits
        )
        blocked = bool(alive) and alive <= blocked_threads
        silent = rank == holder or process_state(pid) == "stopped"
        ranks.append(RankState(rank, pid, blocked, waiting_on, silent))
    return Snapshot(progress, tuple(ranks), tuple(pending)), entries
