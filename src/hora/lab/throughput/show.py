"""The table of a throughput experiment."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from hora.lab import show
from hora.lab.columns import value_text
from hora.lab.show import Field, Row
from hora.lab.throughput.best import best

__all__ = ["EXPENDABLE", "not_done", "print_results", "several", "table"]

EXPENDABLE = ("CPU", "study", "first", "memory", "90 %")  # the first to go if there is no room


def print_results(out: Console, rows: Sequence[Row], title: str, cores: int) -> None:
    """All there is to show of an experiment, also of one from its record: the table, and which point is the best."""
    out.print(show.fitted(table(rows, title), out, EXPENDABLE))
    for line in best(rows, cores):
        show.wrapped(out, f"{show.capital(line)}.")


def table(rows: Sequence[Row], title: str) -> Table:
    """One line a point. What all points have alike is in no column, but for workers and batch."""
    varied = [
        Field(name, left=name in ("transport", "strategy"))
        for name in ("threads", "inter", "transport", "strategy")
        if len({row.get(name) for row in rows}) > 1
    ]
    fields = [
        Field("workers"),
        Field("batch"),
        *varied,
        Field("images_per_s"),
        Field("90 %", text=lambda row: show.span_text(row["low"], row["high"])),
        several("limit_images_per_s"),
        several("share_of_limit"),
        Field("images_per_s_study"),
        Field("first_batch_s"),
        Field("cpu_share"),
        Field("memory_mb"),
    ]
    return show.table(title, rows, fields, unless_done=not_done, begin=2 + len(varied))


def not_done(row: Row) -> str:
    """What to say of a row that has no figures."""
    return "" if row["state"] == "done" else str(row["state"])


def several(name: str) -> Field:
    """A column that says something of several workers only."""
    return Field(name, text=lambda row: value_text(name, row.get(name)) if row["workers"] > 1 else "")
