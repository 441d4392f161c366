"""Makes a report of files: reads what can be read, reports what cannot, and continues with the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from hora.errors import BadData
from hora.text import plural
from hora.timeline.clock import ClockCorrection, put_together
from hora.timeline.measure import measure
from hora.timeline.numbers import Numbers
from hora.timeline.read import Track, read
from hora.timeline.verdict import TimelineFinding, findings

__all__ = ["TimelineReport", "as_json", "make"]


class TimelineReport(msgspec.Struct, frozen=True, kw_only=True):
    """``problems`` are files that could not be used, ``notes`` what is to be known about the others."""

    tracks: list[Track]
    clocks: list[ClockCorrection]
    numbers: Numbers
    findings: list[TimelineFinding]
    notes: list[str]
    problems: list[str]


def make(paths: Sequence[Path]) -> TimelineReport:
    """Read, align, measure and judge. Raises BadData if no file holds an operation."""
    found: dict[int, dict[int, Track]] = {}  # by generation, by rank
    problems: list[str] = []
    for path in paths:
        try:
            track = read(path)
        except BadData as error:
            problems.append(str(error))
            continue
        tracks = found.setdefault(track.generation, {})
        other = tracks.get(track.rank)
        if other is not None:
            same = Path(other.path).resolve() == path.resolve()
            problems.append(
                f"{path} is of rank {track.rank}, and so is {other.path}"
                + (": the same file. Give it once." if same else ": they are of two runs. Give the files of one.")
            )
        elif not track.operations and not track.unfinished:
            problems.append(
                f"{path} (rank {track.rank}) holds no operation: none was submitted while it was recorded. "
                "Record for longer, or check that the script uses Hora's collectives."
            )
        else:
            tracks[track.rank] = track
    if len(found) > 1:  # of several generations of an elastic job the longest is looked at
        tracks = max(found.values(), key=lambda each: sum(len(track.operations) for track in each.values()))
    else:
        tracks = next(iter(found.values()), {})
    problems = _advice_once(problems)
    with_operations = any(track.operations for track in tracks.values())
    if not with_operations:
        stuck = [op for track in tracks.values() for op in track.unfinished]
        if stuck:
            problems.append(
                f"no operation ended; {plural(len(stuck), 'operation')} began, such as {stuck[0].name}. The job was "
                "killed or hung before its first was over: see what it printed."
            )
        raise BadData("\n".join(problems))
    ordered = sorted(tracks.values(), key=lambda track: (not track.operations, track.rank))
    clocks = put_together(ordered)
    numbers = measure(ordered)
    return TimelineReport(
        tracks=ordered,
        clocks=clocks,
        numbers=numbers,
        findings=findings(numbers),
        notes=[*_generations(found, ordered[0].generation), *_notes(ordered, numbers)],
        problems=problems,
    )


def _advice_once(problems: Sequence[str]) -> list[str]:
    """What several have for advice stands with the last of them.

    >>> _advice_once(["no a. Give it.", "no b. Give it."])
    ['no a.', 'no b. Give it.']
    """
    told, advice = [], set()
    for problem in reversed(problems):
        what, _, change = problem.partition(". ")
        told.append(f"{what}." if change in advice else problem)
        advice.add(change)
    return told[::-1]


def _generations(found: Mapping[int, Mapping[int, Track]], shown: int) -> list[str]:
    """When each generation of an elastic job was, and who was in it."""
    if len(found) < 2:
        return []
    said = [
        f"The job had several generations; all above is of generation {shown}. Give the files of another to see it."
    ]
    before: int | None = None
    for number, tracks in sorted(found.items()):
        known = [track for track in tracks.values() if track.epoch_us is not None and track.operations]
        if not known:
            continue
        begin = min((track.epoch_us or 0) + track.operations[0].first_us for track in known)
        end = max((track.epoch_us or 0) + track.operations[-1].end_us for track in known)
        pause = f", {(begin - before) / 1e6:.2f} s after the one before" if before is not None else ""
        clock = datetime.fromtimestamp(begin / 1e6, UTC)
        said.append(
            f"Generation {number}: {plural(len(tracks), 'rank')}, from {clock:%H:%M:%S} UTC{pause}, for "
            f"{(end - begin) / 1e6:.2f} s, {sum(len(track.operations) for track in known)} operations."
        )
        before = end
    return said


def _notes(tracks: list[Track], numbers: Numbers) -> list[str]:
    notes = []
    given = {track.rank for track in tracks}
    missing = [rank for rank in numbers.world if rank not in given]
    if missing and tracks[0].writer == "Hora":
        first = Path(tracks[0].path)
        beside = [
            rank
            for rank in missing
            if tracks[0].rank == 0 and first.with_name(f"{first.stem}.rank{rank}{first.suffix}").exists()
        ]
        hint = f"; {first.stem}.rank{beside[0]}{first.suffix} is in the same folder: give it too" if beside else ""
        notes.append(f"Missing: the {_files(missing)}{hint}.")
    if not numbers.arrivals_known:
        notes.append(
            "Arrivals are not known: these workers agreed by messages, and the files say when all had submitted, not "
            "when each had. It is not known who is late; waiting for it counts as nothing in flight."
        )
    for track in tracks:
        name = Path(track.path).name
        if track.full:
            notes.append(f"{name} stopped at its limit (HORA_TIMELINE_MAX_BYTES): what came after is not in it.")
        if track.skipped:
            notes.append(f"{name}: left out {plural(track.skipped, 'piece')} that fit nowhere (cut off, or not JSON).")
    if numbers.unfinished:
        for stuck in numbers.unfinished[:3]:
            absent = [rank for rank in numbers.world if rank not in stuck.arrived]
            who = (
                f", waiting for rank {', '.join(map(str, absent[:8]))}"
                if stuck.arrived and absent and not stuck.agreed
                else ""
            )
            notes.append(f"Never ended: {stuck.kind.lower()} {stuck.name}{who}.")
        if len(numbers.unfinished) > 3:
            notes.append(f"{len(numbers.unfinished) - 3} more never ended.")
    if numbers.failed:
        notes.append(f"{plural(numbers.failed, 'operation')} failed.")
    return notes


def _files(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (" …" if len(ranks) > 8 else "")
    return f"file of rank {shown}" if len(ranks) == 1 else f"files of ranks {shown}"


def as_json(report: TimelineReport) -> dict[str, Any]:
    """The numbers and the words; not the operations."""
    clocks = [clock._asdict() for clock in report.clocks]
    return {
        "files": [
            {"path": track.path, "rank": track.rank, "writer": track.writer, "operations": len(track.operations)}
            for track in report.tracks
        ],
        "clocks": clocks,
        "findings": report.findings,
        "numbers": report.numbers,
        "notes": report.notes,
        "problems": report.problems,
    }
