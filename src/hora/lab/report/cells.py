"""Rows of plain values as a table of the page: values as their columns write them (``lab.columns``), an interval beside
its figure, and with every cell the value that it is sorted by.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from hora.lab.columns import column, is_number, value_text
from hora.lab.scaling.waterfall import above_ideal

__all__ = ["Cell", "Head", "ReportTable", "table"]

_WHOLE = {
    "workers", "batch", "global_batch", "threads", "seed", "seeds", "steps", "epoch", "epochs", "best_epoch", "hosts",
    "gpus", "runs", "rank", "table", "processes", "experiment", "emulated_workers",
}  # fmt: skip
_ALWAYS = {
    "workers",
    "batch",
    "images_per_s",
    "factor",
    "run",
    "rank",
    "what",
    "plan",
    "framework",
}  # shown though alike


class Cell(NamedTuple):
    """``sort`` is a number or words as text, "" if there is nothing; ``interval`` says how sure the figure is."""

    text: str
    sort: str
    interval: str = ""


class Head(NamedTuple):
    """A heading, and whether it is of numbers."""

    title: str
    number: bool


class ReportTable(NamedTuple):
    """What the page shows. ``about`` says of which experiment; ``marks`` what is to be known of a row: "predicted" or
    "above ideal", else ""."""

    title: str
    columns: list[Head]
    rows: list[list[Cell]]
    note: str = ""
    about: str = ""
    marks: list[str] = []  # noqa: RUF012 - never changed


def table(
    rows: Sequence[Mapping[str, Any]],
    title: str = "",
    *,
    first: Sequence[str] = (),
    leave_out: Iterable[str] = (),
    note: str = "",
    about: str = "",
) -> ReportTable:
    """A table of all columns that any row has something in, some of them first. Columns ``X_low`` and ``X_high`` (or
    ``low`` and ``high``, of images/s) become the interval of ``X``; what is alike in all rows is said in the note. What
    was predicted or is above ideal is marked in the row and in its figures.

    >>> made = table([{"workers": 2, "images_per_s": 4812.3, "low": 4700.0, "high": 4900.0, "error": None}])
    >>> [column.title for column in made.columns], [(cell.text, cell.interval) for cell in made.rows[0]]
    (['workers', 'images/s'], [('2', ''), ('4,812', '4,700 to 4,900')])
    >>> table([{"workers": 1, "threads": 1}, {"workers": 2, "threads": 1}]).note
    'Same in all rows: threads 1.'
    >>> made = table([{"workers": 2, "images_per_s": 9.0, "state": "done"}, {"workers": 4, "images_per_s": 17.0,
    ...                "state": "predicted"}])
    >>> [[cell.text for cell in row] for row in made.rows], made.marks
    ([['2', '9.00', 'measured'], ['4', '≈ 17.0', 'predicted']], ['', 'predicted'])
    """
    marks = [_mark(row) for row in rows]
    if "predicted" in marks:
        rows = [{**row, "state": "measured" if row.get("state") == "done" else row.get("state")} for row in rows]
    present = dict.fromkeys(name for row in rows for name in row)
    names = list(dict.fromkeys([*(name for name in first if name in present), *present]))
    bounds = _bounds(names)
    inside = {name for pair in bounds.values() for name in pair}
    shown = [
        name
        for name in names
        if name not in inside and name not in leave_out and any(value_text(name, row.get(name)) for row in rows)
    ]
    alike = _alike(shown, rows)
    columns: list[Head] = []
    cells: list[list[Cell]] = [[] for _ in rows]
    for name in (name for name in shown if name not in alike):
        number = all(row.get(name) is None or is_number(row[name]) for row in rows)
        columns.append(Head(column(name).title, number))
        low, high = bounds.get(name, ("", ""))
        for line, row, mark in zip(cells, rows, marks, strict=True):
            text = value_text(name, row.get(name))
            ends = [value_text(name, row.get(end)) for end in (low, high)]
            shown_text = f"≈ {text}" if text and mark == "predicted" and number and _is_found(name) else text
            if text and mark == "above ideal" and name == "efficiency":
                shown_text = f"{text} ⚠"
            sort = (str(row[name]) if number else text) if text else ""
            line.append(Cell(shown_text, sort, _span(*ends) if text and all(ends) else ""))
    said = ", ".join(
        f"{column(name).title} {text}" for name, text in alike.items() if (name, text) != ("state", "done")
    )
    notes = (
        f"Same in all rows: {said}." if said else "",
        "≈ was predicted, not measured." if "predicted" in marks else "",
        "⚠ is more than ideal, which is impossible: do not trust it." if "above ideal" in marks else "",
        note,
    )
    return ReportTable(title, columns, cells, " ".join(part for part in notes if part), about, marks)


def _span(low: str, high: str) -> str:
    """
    >>> _span("93 %", "96 %"), _span("1.86x", "1.93x"), _span("2,910", "3,060"), _span("1.00x", "1.00x")
    ('93 to 96 %', '1.86 to 1.93x', '2,910 to 3,060', '')
    """
    if low == high:
        return ""  # as sure as can be: what others are measured by
    for unit in (" %", "x"):
        if low.endswith(unit) and high.endswith(unit):
            low = low.removesuffix(unit)
    return f"{low} to {high}"


def _mark(row: Mapping[str, Any]) -> str:
    """What is to be known before a row's figures are believed."""
    if "predicted" in (row.get("state"), row.get("how")):
        return "predicted"
    efficiency = row.get("efficiency")
    too_much = isinstance(efficiency, int | float) and above_ideal(efficiency)
    return "above ideal" if row.get("above_ideal") or too_much else ""


def _is_found(name: str) -> bool:
    """Whether a column is of what came out, rather than of what was asked for or published."""
    return name not in _WHOLE and not name.startswith("published")


def _bounds(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Which columns are the ends of which one's interval."""
    found = {name: (f"{name}_low", f"{name}_high") for name in names}
    found["images_per_s"] = ("low", "high") if "low" in names else found.get("images_per_s", ("", ""))
    return {name: pair for name, pair in found.items() if set(pair) <= set(names)}


def _alike(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Columns that say the same in every row, and what."""
    if len(rows) < 2:
        return {}
    texts = {name: {value_text(name, row.get(name)) for row in rows} for name in names if name not in _ALWAYS}
    return {name: next(iter(said)) for name, said in texts.items() if len(said) == 1}
