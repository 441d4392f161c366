"""The report of `hora timeline`: words first, then the tables they rest on. Readable without colour and in a log."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hora.terminal import caption, table
from hora.text import micros_text, plural, rate_text, share_text, size_text
from hora.timeline.clock import ClockCorrection
from hora.timeline.numbers import Numbers, RankTime
from hora.timeline.read import Track
from hora.timeline.verdict import TimelineFinding

__all__ = ["bar", "print_report"]

_RANKS = 8  # shown; of more, those that are waited for most
_TENSORS = 5
_GAPS = 3


def bar(time: RankTime, width: int) -> str:
    """A rank's time as a row of blocks: moving, copying, queued, waiting, nothing in flight.

    >>> from hora.timeline.measure import measure
    >>> from hora.timeline.read import TimelineOperation
    >>> ops = [TimelineOperation("a", "ALLREDUCE", t, {0: t, 1: t + 50}, t + 50, t + 75) for t in (0, 100, 200, 300,
    ...     400)]
    >>> bar(measure([Track("", 0, "Hora", operations=ops)]).ranks[0], 20)
    '█████░░░░░░░░░░·····'
    """
    parts = [time.move_us, time.copy_us, time.queue_us, time.wait_us, time.idle_us]
    drawn, total, passed = "", max(1, sum(parts)), 0
    for letter, part in zip("█▓▒░·", parts, strict=True):
        passed += part
        drawn += letter * (round(width * passed / total) - len(drawn))
    return drawn


def print_report(
    console: Console,
    tracks: Sequence[Track],
    clocks: Sequence[ClockCorrection],
    numbers: Numbers,
    found: Sequence[TimelineFinding],
    notes: Sequence[str],
) -> None:
    """All of it."""
    if not console.is_terminal and "COLUMNS" not in console._environ:
        console.width = max(console.width, 110)  # a log has no width; do not fold its lines
    wide = console.width >= 100
    _say(console, _heading(tracks, numbers))
    for number, finding in enumerate(found):
        label = "Bottleneck" if number == 0 else "Also"
        console.print(f"\n[bold]{label}: {escape(finding.title)}.[/bold]", highlight=False)
        _say(console, f"{finding.what.rstrip('.')}.", 2)
        _say(console, f"Change: {finding.change}.", 2)
        if finding.kind != "not communication":
            _say(console, f"Gain: up to {share_text(finding.gain)} less time a step.", 2)
    console.print()
    console.print(_times(numbers, console.width), highlight=False)
    _say(console, _exposure(numbers))
    console.print()
    if numbers.arrivals_known and any(entry.of for entry in numbers.late):
        console.print(_lateness(numbers), highlight=False)
        console.print()
    console.print(_kinds(numbers, wide), highlight=False)
    _say(console, _fusion(numbers))
    console.print()
    console.print(_tensors(numbers, console.width), highlight=False)
    console.print()
    for line in [*_gaps(numbers), *_clocks(clocks), *notes]:
        _say(console, line)


def _say(console: Console, text: str, indent: int = 0) -> None:
    margin = " " * indent
    lines = textwrap.wrap(
        text, max(40, console.width), initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False
    )
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _heading(tracks: Sequence[Track], numbers: Numbers) -> str:
    operations = plural(len(tracks[0].operations), "operation")
    written = f"{tracks[0].writer}'s timeline of {plural(len(numbers.world), 'rank')}"
    files = f", {plural(len(tracks), 'file')}" if len(numbers.world) > 1 else ""
    time = next((time for time in numbers.ranks if time.rank == tracks[0].rank), None)
    if time is None or not time.steps:
        unknown = "No name comes three times, so steps are not known."
        return f"{written}{files}: {operations} on rank {tracks[0].rank}. {unknown}"
    apart = " The first and the last step are left out." if time.all_steps >= 4 else ""
    return (
        f"{written}{files}: {operations} on rank {tracks[0].rank} in {plural(time.all_steps, 'step')} of "
        f"{micros_text(time.step_us)} (90th percentile {micros_text(time.step_p90_us)}).{apart}"
    )


def _times(numbers: Numbers, width: int) -> Table:
    legend = "█ moving  ▓ copying  ▒ queued  ░ waiting  · nothing in flight"
    copies = any(time.copy_us for time in numbers.ranks)
    headings = ["rank", "", "moving", *(["copying"] if copies else []), "queued", "waiting", "nothing"]
    length = max(4, min(40, width - (78 if copies else 68)))  # what the figures leave
    made = table("Where each rank's time goes", (*headings, "exposed"), left=("",))
    caption(made, legend)
    chosen = sorted(numbers.ranks, key=lambda time: -time.wait_us)[:_RANKS]
    for time in sorted(chosen, key=lambda time: time.rank):
        parts = [time.move_us, *([time.copy_us] if copies else []), time.queue_us, time.wait_us, time.idle_us]
        known, most = share_text(time.share(time.exposed_us)), share_text(time.share(time.in_flight_us))
        exposed = known if known == most else f"{known} to {most}"
        name = str(time.rank) if time.own_file else f"{time.rank}*"
        made.add_row(name, bar(time, length), *(share_text(time.share(part)) for part in parts), exposed)
    return made


def _exposure(numbers: Numbers) -> str:
    lines = []
    if all(time.blocking for time in numbers.ranks):
        lines.append(
            "Operations are never in flight together: the calls wait for the result, and all of it is exposed."
        )
    elif any(time.steps for time in numbers.ranks):
        lines.append(
            "Exposed is what comes after a step's last submission; at most all that is in flight. What the script does "
            "meanwhile is not in a timeline."
        )
    else:
        lines.append("Without steps all that is in flight counts as exposed: the most it can be.")
    if any(not time.own_file for time in numbers.ranks):
        lines.append("* no file of this rank: seen through another's, which has its arrivals.")
    if len(numbers.ranks) > _RANKS:
        lines.append(f"{len(numbers.ranks) - _RANKS} more ranks wait less; --json has all.")
    return " ".join(lines)


def _lateness(numbers: Numbers) -> Table:
    made = table("Who is late", ("rank", "last at", "then by", "90th perc.", "others wait for it"))
    chosen = sorted(numbers.late, key=lambda entry: (-entry.wait_us, -entry.last))[:_RANKS]
    window = max((time.window_us for time in numbers.ranks), default=1) or 1
    for entry in sorted(chosen, key=lambda entry: entry.rank):
        made.add_row(
            str(entry.rank),
            share_text(entry.last / max(1, entry.of)),
            micros_text(entry.median_us) if entry.last else "",
            micros_text(entry.p90_us) if entry.last else "",
            share_text(entry.wait_us / window),
        )
    return made


def _kinds(numbers: Numbers, wide: bool) -> Table:
    headings = ("operation", "by", "times", "batches", "data", "time", "rate")
    made = table("How data moves", headings, left=("operation", "by"))
    for kind in numbers.kinds[:8]:
        by = kind.label.removesuffix(f"_{kind.kind}") or "with the arrival"
        size = size_text(kind.nbytes) if kind.nbytes else "?"
        made.add_row(
            kind.kind.lower(), by if wide else by[:16], f"{kind.operations:,}", f"{kind.batches:,}", size,
            micros_text(kind.move_us), rate_text(kind.bytes_per_s),
        )  # fmt: skip
    return made


def _fusion(numbers: Numbers) -> str:
    fusion = numbers.fusion
    each = fusion.operations / max(1, fusion.batches)
    if 2 * fusion.sized < fusion.batches:
        return f"Fusion: {each:.1f} operations to a batch; their sizes are not in the file."
    share = share_text(fusion.tiny / fusion.sized)
    costs = f" and take {micros_text(fusion.tiny_us)} each" if fusion.tiny else ""
    return (
        f"Fusion: {each:.1f} operations and {size_text(fusion.median_bytes)} to a batch (median); {share} of the "
        f"batches are below 64 KB{costs}."
    )


def _tensors(numbers: Numbers, width: int) -> Table:
    made = table("Slowest tensors", ("name", "times", "size", "first to last rank", "moving"), left=("name",))
    room = max(20, width - 52)
    for tensor in numbers.tensors[:_TENSORS]:
        name = tensor.name if len(tensor.name) <= room else f"…{tensor.name[1 - room :]}"
        made.add_row(
            escape(name),
            f"{tensor.count:,}",
            size_text(tensor.nbytes),
            micros_text(tensor.wait_us) if numbers.arrivals_known else "",
            micros_text(tensor.move_us),
        )
    return made


def _gaps(numbers: Numbers) -> list[str]:
    long = [gap for gap in numbers.gaps if gap.length_us > 3 * numbers.gap_us and gap.length_us >= 1000][:_GAPS]
    if not long:
        return []
    said = "; ".join(
        f"{micros_text(gap.length_us)} on rank {gap.rank} at {gap.at_us / 1e6:.2f} s, before {gap.before or '?'}"
        for gap in long
    )
    return [f"Gaps: nothing is in flight for {micros_text(numbers.gap_us)} in the median; the longest are {said}."]


def _clocks(clocks: Sequence[ClockCorrection]) -> list[str]:
    lines = []
    for clock in clocks[1:]:
        drift = f", drifting by {clock.drift * 1e6:.1f} µs a second" if clock.drift else ""
        match clock.how:
            case "arrivals":
                continue
            case "ends":
                error = f"wrong by {micros_text(clock.error_us)} at most" if clock.error_us is not None else (
                    "but no offset fits all of them: are the files of one run?"
                )  # fmt: skip
                lines.append(f"Clock of rank {clock.rank}: from operations that end together{drift}, {error}.")
            case "wall clocks":
                lines.append(
                    f"Clock of rank {clock.rank}: from the wall clock, as it shares no operation with rank "
                    f"{clocks[0].rank}. Are the files of one run?"
                )
            case _:
                lines.append(
                    f"Clock of rank {clock.rank}: it has no operation in common with rank {clocks[0].rank}, so their "
                    "times cannot be compared."
                )
    if not lines and len(clocks) > 1:
        lines = ["Clocks: all ranks recorded the same arrivals, so their times agree to 1 µs."]
    return lines
