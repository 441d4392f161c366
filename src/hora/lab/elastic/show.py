"""The table of an elastic experiment."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from hora.lab import show
from hora.lab.show import Field, Row

__all__ = ["EXPENDABLE", "table"]

EXPENDABLE = ("time", "join", "images/s")  # the first to go if there is no room


def table(rows: Sequence[Row], title: str) -> Table:
    """One line a run."""
    fields = [
        Field("run", left=True),
        Field("workers"),
        Field("kills"),
        Field("generations"),
        Field("recovery_s"),
        Field("slowest_recovery_s"),
        Field("join_s"),
        Field("goodput"),
        Field("images_per_s"),
        Field("time_s"),
        Field("same_bits"),
    ]
    return show.table(title, rows, fields, unless_done=_not_done)


def _not_done(row: Row) -> str:
    return "" if row["state"] == "done" else f"{row['state']}: {row['error'] or ''}"
