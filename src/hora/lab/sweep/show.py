"""The table of a sweep, as competition teams keep it: configuration, batch, rate, speed, time, quality, state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from hora.lab.predict.forecast import duration_text
from hora.lab.sweep.space import value_text
from hora.lab.throughput.show import blank, columns, count_text

__all__ = ["metric_text", "table"]

_FIXED = ("batch", "lr", "workers")
MOST = 24  # characters of a cell


def metric_text(name: str, value: float | None) -> str:
    """
    >>> metric_text("val_accuracy", 0.98714), metric_text("val_loss", 0.12345), metric_text("val_loss", None)
    ('98.71 %', '0.1235', '')
    """
    if value is None:
        return ""
    return f"{100 * value:.2f} %" if "accuracy" in name or "top" in name else f"{value:.4g}"


def table(rows: Sequence[Mapping[str, Any]], swept: Sequence[str], metric: str, title: str) -> Table:
    """One line a point, in the order in which they were tried; the best has a star."""
    made = blank(title)
    more = [name for name in swept if name not in _FIXED]
    workers = ["workers"] if "workers" in swept else []
    peak = ["peak lr"] if any(row["peak_lr"] != row["lr"] for row in rows) else []
    shown = [] if metric == "images_per_s" else [metric.removeprefix("val_").replace("_", " ")]
    columns(
        made, "", *more, *workers, "batch", "lr", *peak, "images/s", "time", *shown, "state", left=("", *more, "state")
    )
    for row in rows:
        made.add_row(
            "*" if row["best"] else "",
            *(value_text(row[name])[:MOST] for name in more),
            *(str(row[name]) for name in workers),
            f"{row['batch']:,}",
            "" if row["lr"] is None else value_text(row["lr"]),
            *([value_text(row["peak_lr"])] if peak else []),
            count_text(row["images_per_s"]),
            "" if row["time_s"] is None else duration_text(row["time_s"]),
            *([metric_text(metric, row[metric])] if shown else []),
            row["state"],
        )
    return made
