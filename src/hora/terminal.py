"""Tables on a terminal, written the same way by every command: readable without colour, and in a log."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rich import box
from rich.markup import escape
from rich.table import Table

__all__ = ["caption", "table"]


def table(
    title: str = "",
    headings: Iterable[str] = (),
    *,
    left: Collection[str] = (),
    bold: str = "",
    padding: tuple[int, int] | tuple[int, int, int, int] = (0, 1, 0, 0),
    wrap: bool = False,
) -> Table:
    """An empty table. Columns are of figures, at the right, but for those in ``left``; ``bold`` is the heading of one.

    >>> [column.justify for column in table("speed", ("by", "images/s"), left=("by",)).columns]
    ['left', 'right']
    """
    made = Table(
        title=title or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=padding,
        pad_edge=False, show_edge=False,
    )  # fmt: skip
    for heading in headings:
        made.add_column(
            escape(heading),
            justify="left" if heading in left else "right",
            no_wrap=not wrap,
            overflow="fold" if wrap else "ellipsis",
            style="bold" if bold and heading == bold else "",
        )
    return made


def caption(made: Table, text: str) -> Table:
    """The table with a line below it."""
    made.caption, made.caption_justify, made.caption_style = text, "left", ""
    return made
