"""The tables and the words of a scaling experiment: readable without colour, in a log, and within a hundred columns."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hora.lab.bench.figures import time_text
from hora.lab.scaling.verdict import rate_text
from hora.lab.throughput.show import WIDTH, blank, columns, count_text, share, span_text
from hora.lab.timeline.words import share_text

__all__ = ["headlines", "print_findings", "print_waterfall", "table", "waterfall_lines"]


def table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """One line a worker count."""
    made = blank(title)
    columns(
        made, "workers", "batch", "images/s", "90 %", "ideal", "limit", "in step", "speed-up", "efficiency", "90 %",
        "data",
    )  # fmt: skip
    for row in rows:
        begin = [str(row["workers"]), str(row["batch"])]
        if row["state"] != "done":
            made.add_row(*begin, row["state"])
            continue
        several = row["workers"] > 1
        low, high = row["efficiency_low"], row["efficiency_high"]
        made.add_row(
            *begin,
            count_text(row["images_per_s"]),
            span_text(row["low"], row["high"]),
            count_text(row["ideal_images_per_s"]) if several else "",
            count_text(row["limit_images_per_s"]) if several else "",
            count_text(row.get("in_step_images_per_s")) if several else "",
            "" if row["speed_up"] is None else f"{row['speed_up']:.2f}",
            share(row["efficiency"]) + (" (!)" if row.get("above_ideal") else ""),
            f"{100 * low:.0f}-{100 * high:.0f} %" if several and low is not None else "",
            _waiting(row),
        )
    return made


def _waiting(row: Mapping[str, Any]) -> str:
    """The part of a step that is waiting for data."""
    return share(row["data_ms"] / row["step_ms"]) if row["data_ms"] is not None and row["step_ms"] else ""


def headlines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What must be said first about rows of one mode: what cannot be, and what is worse than one worker.

    >>> headlines([{"workers": 2, "above_ideal": True, "efficiency": 1.42, "slower_than_one": False, "link": None}])
    ['(!) 142 % of ideal with 2 workers cannot be, and is not to be believed.']
    """
    said = []
    for row in rows:
        workers = f"{row['workers']} workers"
        if row.get("above_ideal"):
            said.append(
                f"(!) {share_text(row['efficiency'])} of ideal with {workers} cannot be, and is not to be believed."
            )
        if row.get("slower_than_one"):
            said.append(f"{workers} are slower than one worker: {row['speed_up']:.2f} times its images/s.")
        if link := row.get("link"):
            best = link["faster"][-1]
            said.append(
                f"The link with {workers}: {rate_text(link['mbit_per_s'])}, {share_text(link['share'])} of a step. At "
                f"{rate_text(best['mbit_per_s'])} they would have {best['speed_up']:.2f} times the images/s of one."
            )
    return said


def print_waterfall(console: Console, row: Mapping[str, Any]) -> None:
    """The way from ideal to measured, of the largest job: a bar for each part, each beginning where the one before it
    ends. Without colour it reads the same."""
    parts = row.get("waterfall")
    if not parts:
        return
    console.print(f"\n[bold]From ideal to measured, {row['workers']} workers[/bold]", highlight=False)
    for line in waterfall_lines(parts, min(WIDTH, max(60, console.width))):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def waterfall_lines(parts: Sequence[Mapping[str, Any]], width: int = WIDTH) -> list[str]:
    """
    >>> made = [{"part": "computing", "title": "computing", "ms": 75.0, "share": 0.75},
    ...         {"part": "waiting", "title": "waiting", "ms": 25.0, "share": 0.25},
    ...         {"part": "pauses", "title": "pauses", "ms": None, "share": None}]
    >>> for line in waterfall_lines(made, 50): print(line.rstrip())
      computing 75.0 ms  75 % ████████████████
      waiting   25.0 ms  25 %                 ██████
      pauses     not measured
      a step     100 ms 100 % ██████████████████████
    """
    known = [part for part in parts if part["share"] is not None]
    total_ms = sum(part["ms"] for part in known)
    titles = max(len(part["title"]) for part in parts)
    figures = max(len(_ms(ms)) for ms in [total_ms, *(part["ms"] for part in known)])
    space = max(10, width - titles - figures - 12)
    lines, before = [], 0.0
    for part in [*parts, {"title": "a step", "ms": total_ms, "share": 1.0, "part": ""}]:
        if part["share"] is None:
            lines.append(f"  {part['title']:{titles}}  not measured")
            continue
        begin = 0.0 if not part["part"] else before
        before += part["share"]
        start, end = round(begin * space), round((begin + part["share"]) * space)
        bar = " " * start + "█" * (end - start)
        if end == start and part["share"] > 0:
            bar = " " * min(start, space - 1) + "▏"
        percent = f"{100 * part['share']:3.0f} %"
        lines.append(f"  {part['title']:{titles}} {_ms(part['ms']):>{figures}} {percent} {bar}".rstrip())
    return lines


def _ms(value: float) -> str:
    return time_text(1e3 * value) if value else "0 ms"


def print_findings(console: Console, found: Sequence[Mapping[str, Any]]) -> None:
    """The bottleneck and what else is worth a change, in words; of one mode."""
    for number, finding in enumerate(found):
        label = "Bottleneck" if number == 0 else "Also"
        console.print(f"\n[bold]{label}: {escape(finding['title'])}.[/bold]", highlight=False)
        _say(console, finding["what"])
        _say(console, f"Change: {finding['change']}")
        if finding["kind"] not in ("compute", "above ideal"):
            takes = f"takes {share_text(finding['share'])} of a step"
            _say(console, f"It {takes}; gain: up to {share_text(finding['gain'])} less time a step")


def _say(console: Console, text: str) -> None:
    width = min(WIDTH, max(40, console.width))
    said = text.rstrip(".") + "."
    for line in textwrap.wrap(said, width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
