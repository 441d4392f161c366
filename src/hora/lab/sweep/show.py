"""The table of a sweep, as competition teams keep it: configuration, batch, rate, speed, time, quality, state."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from hora.lab import show
from hora.lab.show import Field, Row
from hora.lab.sweep.space import value_text as option_text

__all__ = ["table"]

_FIXED = ("batch", "lr", "workers")
MOST = 24  # characters of a cell


def table(rows: Sequence[Row], swept: Sequence[str], metric: str, title: str) -> Table:
    """One line a point, in the order in which they were tried; the best has a star."""
    peak = any(row["peak_lr"] != row["lr"] for row in rows)
    fields = [
        Field("best", "", lambda row: "*" if row["best"] else "", left=True),
        *(_option(name) for name in swept if name not in _FIXED),
        *([Field("workers")] if "workers" in swept else []),
        Field("batch"),
        Field("lr"),
        *([Field("peak_lr")] if peak else []),
        *([Field("steps")] if any("steps" in row for row in rows) else []),
        Field("images_per_s"),
        Field("time_s"),
        *([Field(metric, metric_heading(metric))] if metric != "images_per_s" else []),
        *([Field("best_step", "at step")] if any("best_step" in row for row in rows) else []),
        *([Field("top5", "top-5")] if any("top5" in row for row in rows) else []),
        Field("state", left=True),
    ]
    return show.table(title, rows, fields)


def metric_heading(metric: str) -> str:
    """
    >>> metric_heading("val_accuracy")
    'accuracy'
    """
    return metric.removeprefix("val_").replace("_", " ")


def _option(name: str) -> Field:
    return Field(name, name, lambda row: option_text(row[name])[:MOST], left=True)
