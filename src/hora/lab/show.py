"""What every command of the lab prints on a console: tables, paragraphs, findings. Readable without colour, in a log,
and within a hundred columns.

A table is rows and fields: a field names a column (``lab.columns``), which knows its heading and how its values are
written, and may say otherwise for this table.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hora import terminal
from hora.lab.columns import column
from hora.text import count_text, share_text

__all__ = [
    "WIDTH", "Field", "Row", "capital", "console", "fitted", "gain_text", "print_notes", "span_text", "table", "titled",
    "wrapped",
]  # fmt: skip

WIDTH = 100
Row = Mapping[str, Any]


class Field(NamedTuple):
    """A column of one table. ``heading`` and ``text`` are the column's own unless they are given."""

    name: str
    heading: str | None = None
    text: Callable[[Row], str] | None = None
    left: bool = False

    @property
    def title(self) -> str:
        return column(self.name).short if self.heading is None else self.heading

    def cell(self, row: Row) -> str:
        return column(self.name).text(row.get(self.name)) if self.text is None else self.text(row)


def console() -> Console:
    """Standard output; a log has no width of its own, and is as wide as the tables."""
    made = Console(highlight=False)
    if not made.is_terminal and "COLUMNS" not in made._environ:
        made.width = WIDTH
    return made


def table(
    title: str,
    rows: Sequence[Row],
    fields: Sequence[Field],
    *,
    unless_done: Callable[[Row], str] | None = None,
    begin: int = 2,
) -> Table:
    """One line a row. If ``unless_done`` says something of a row, that stands after its first ``begin`` fields in
    place of its figures.

    >>> made = table("speed", [{"workers": 2, "images_per_s": 4812.3}], [Field("workers"), Field("images_per_s")])
    >>> [column.header for column in made.columns], made.row_count
    (['workers', 'images/s'], 1)
    """
    made = terminal.table(title, [field.title for field in fields], left=[f.title for f in fields if f.left])
    for row in rows:
        said = unless_done(row) if unless_done is not None else ""
        cells = [field.cell(row) for field in (fields[:begin] if said else fields)]
        made.add_row(*map(escape, cells), *([said] if said else []))
    return made


def fitted(made: Table, out: Console, expendable: Sequence[str]) -> Table:
    """The same within the console's width: columns are left out, in this order, rather than figures cut off."""
    left_out = []
    for heading in expendable:
        if out.measure(made, options=out.options.update(width=10_000)).maximum <= out.width:
            break
        if any(each.header == heading for each in made.columns):
            made.columns = [each for each in made.columns if each.header != heading]
            for number, each in enumerate(made.columns):
                each._index = number  # by which rich finds its width
            left_out.append(heading)
    if left_out:
        said = f"no room for {', '.join(left_out)}: a wider terminal or --json has them"
        terminal.caption(made, f"{made.caption}; {said}" if made.caption else said)
    return made


def span_text(low: float | None, high: float | None) -> str:
    """
    >>> span_text(4700.1, 4901.7), span_text(None, None)
    ('4,700-4,902', '')
    """
    return "" if low is None or high is None else f"{count_text(low)}-{count_text(high)}"


def gain_text(finding: Row) -> str:
    """What following a finding about speed gains, as far as it is known.

    >>> gain_text({"gain": 0.25}), gain_text({"gain": 0.41, "tried": True})
    ('gain: up to 25 % less time a step', 'gain: 41 % less time for as many images, measured')
    """
    gain = share_text(finding["gain"])
    return (
        f"gain: {gain} less time for as many images, measured"
        if finding.get("tried")
        else (f"gain: up to {gain} less time a step")
    )


def capital(text: str) -> str:
    """The text with a capital first.

    >>> capital("rank 1 is late"), capital("")
    ('Rank 1 is late', '')
    """
    return f"{text[:1].upper()}{text[1:]}"


def wrapped(out: Console, text: str, *, indent: str = "", hanging: str | None = None, bold: bool = False) -> None:
    """A paragraph, as wide as the tables at most."""
    width = min(WIDTH, max(40, out.width))
    after = indent if hanging is None else hanging
    for line in textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=after, break_on_hyphens=False):
        out.print(f"[bold]{escape(line)}[/bold]" if bold else escape(line), highlight=False, soft_wrap=True)


def titled(out: Console, title: str, *texts: str) -> None:
    """A sentence in bold, and the sentences that belong to it below."""
    wrapped(out, title, bold=True)
    for text in texts:
        wrapped(out, f"{text.rstrip('.')}.", indent="  ")


def print_notes(out: Console, notes: Sequence[str]) -> None:
    """Each note as a paragraph of its own."""
    for note in notes:
        wrapped(out, capital(note).rstrip(".") + ".", hanging="  ")
