"""The tables and the words of a scaling experiment: readable without colour, in a log, and within a hundred columns."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hora.lab.throughput.show import WIDTH, blank, columns, count_text, share, span_text
from hora.lab.timeline.words import share_text

__all__ = ["print_findings", "table"]


def table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """One line a worker count."""
    made = blank(title)
    columns(
        made, "workers", "batch", "images/s", "90 %", "ideal", "limit", "speed-up", "efficiency", "90 %", "limit's",
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
            "" if row["speed_up"] is None else f"{row['speed_up']:.2f}",
            share(row["efficiency"]),
            f"{100 * low:.0f}-{100 * high:.0f} %" if several and low is not None else "",
            share(row["limit_efficiency"]) if several else "",
            _waiting(row),
        )
    return made


def _waiting(row: Mapping[str, Any]) -> str:
    """The part of a step that is waiting for data."""
    return share(row["data_ms"] / row["step_ms"]) if row["data_ms"] is not None and row["step_ms"] else ""


def print_findings(console: Console, found: Sequence[Mapping[str, Any]]) -> None:
    """The bottleneck and what else is worth a change, in words; of one mode."""
    for number, finding in enumerate(found):
        label = "Bottleneck" if number == 0 else "Also"
        console.print(f"\n[bold]{label}: {escape(finding['title'])}.[/bold]", highlight=False)
        _say(console, finding["what"])
        _say(console, f"Change: {finding['change']}")
        if finding["kind"] != "compute":
            takes = f"takes {share_text(finding['share'])} of a step"
            _say(console, f"It {takes}; gain: up to {share_text(finding['gain'])} less time a step")


def _say(console: Console, text: str) -> None:
    width = min(WIDTH, max(40, console.width))
    said = text.rstrip(".") + "."
    for line in textwrap.wrap(said, width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
