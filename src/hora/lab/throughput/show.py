"""The table of a throughput experiment: readable without colour, in a log, and within a hundred columns."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

__all__ = ["EXPENDABLE", "blank", "columns", "count_text", "fitted", "print_notes", "span_text", "table"]

WIDTH = 100
EXPENDABLE = ("CPU", "study", "first s", "MB", "90 %")  # the first to go if there is no room


def count_text(value: float | None) -> str:
    """Images/s as people read them.

    >>> count_text(4812.3), count_text(81.26), count_text(3.217), count_text(None)
    ('4,812', '81.3', '3.22', '')
    """
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def span_text(low: float | None, high: float | None) -> str:
    """
    >>> span_text(4700.1, 4901.7), span_text(None, None)
    ('4,700-4,902', '')
    """
    return "" if low is None or high is None else f"{count_text(low)}-{count_text(high)}"


def share(value: float | None) -> str:
    """
    >>> share(0.9634), share(None)
    ('96 %', '')
    """
    return "" if value is None else f"{100 * value:.0f} %"


def blank(title: str) -> Table:
    """A table as all of the lab's look."""
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )


def columns(made: Table, *headings: str, left: Sequence[str] = ()) -> None:
    for heading in headings:
        made.add_column(heading, justify="left" if heading in left else "right", no_wrap=True)


def fitted(made: Table, console: Console, expendable: Sequence[str]) -> Table:
    """The same within the console's width: columns are left out, in this order, rather than figures cut off."""
    left_out = []
    for heading in expendable:
        if console.measure(made, options=console.options.update(width=10_000)).maximum <= console.width:
            break
        if any(column.header == heading for column in made.columns):
            made.columns = [column for column in made.columns if column.header != heading]
            for number, column in enumerate(made.columns):
                column._index = number  # by which rich finds its width
            left_out.append(heading)
    if left_out:
        said = f"no room for {', '.join(left_out)}: a wider terminal or --json has them"
        caption = f"{made.caption}; {said}" if made.caption else said
        made.caption, made.caption_justify, made.caption_style = caption, "left", ""
    return made


def table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """One line a point. What all points have alike is in no column, but for workers and batch."""
    made = blank(title)
    varied = [name for name in ("threads", "transport") if len({row[name] for row in rows}) > 1]
    named = ["by" if name == "transport" else name for name in varied]
    columns(
        made, "workers", "batch", *named, "images/s", "90 %", "limit", "of it", "study", "first s", "CPU", "MB",
        left=("by",),
    )  # fmt: skip
    for row in rows:
        begin = [str(row["workers"]), str(row["batch"]), *(str(row[name]) for name in varied)]
        if row["state"] != "done":
            made.add_row(*begin, row["state"])
            continue
        made.add_row(
            *begin,
            count_text(row["images_per_s"]),
            span_text(row["low"], row["high"]),
            count_text(row["limit_images_per_s"]) if row["workers"] > 1 else "",
            share(row["share_of_limit"]) if row["workers"] > 1 else "",
            count_text(row["images_per_s_study"]),
            "" if row["first_batch_s"] is None else f"{row['first_batch_s']:.1f}",
            share(row["cpu_share"]),
            "" if row["memory_mb"] is None else f"{row['memory_mb']:,.0f}",
        )
    return made


def print_notes(console: Console, notes: Sequence[str]) -> None:
    """Each note as a paragraph of its own."""
    for note in notes:
        text = f"{note[0].upper()}{note[1:]}".rstrip(".") + "."
        lines = textwrap.wrap(text, min(WIDTH, max(40, console.width)), subsequent_indent="  ", break_on_hyphens=False)
        for line in lines:
            console.print(line, highlight=False, markup=False, soft_wrap=True)
