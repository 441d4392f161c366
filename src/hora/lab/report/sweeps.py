"""The section on sweeps: every point in a table, and the metric by the option with the most values."""

from __future__ import annotations

import math

from hora.lab.report import cells
from hora.lab.report.charts import Axis, Figure, Point, lines
from hora.lab.report.gather import Gathered, Measured
from hora.lab.report.label import labels
from hora.lab.report.section import Section
from hora.lab.report.speed import number

__all__ = ["sweep"]

_MOST_TICKS = 8


def sweep(gathered: Gathered) -> Section | None:
    """The points of sweeps: a table, and the metric by the option with the most values."""
    tables: list[cells.Table] = []
    figures: list[Figure] = []
    for measured in gathered.experiments:
        if measured.experiment.kind == "sweep" and measured.experiment.rows:
            tables.append(
                cells.table(measured.experiment.rows, measured.name, leave_out=["error"], about=measured.about)
            )
            figures += _metric_figure(measured, len(figures))
    return Section(anchor="sweep", title="Sweep", figures=figures, tables=tables) if tables else None


def _metric_figure(measured: Measured, before: int) -> list[Figure]:
    rows = [row for row in measured.experiment.rows if row.get("state", "done") == "done"]
    metric = str(measured.experiment.options.get("metric") or "val_accuracy")
    results = {"trial", "images_per_s", "time_s", "best", "state", "error", metric}
    swept = [
        name
        for name in (rows[0] if rows else {})
        if name not in results and len({str(row.get(name)) for row in rows}) > 1
    ]
    numeric = [
        name for name in swept if all(math.isfinite(number(row, name)) and number(row, name) > 0 for row in rows)
    ]
    if not numeric or not any(math.isfinite(number(row, metric)) for row in rows):
        return []
    across = max(numeric, key=lambda name: len({row[name] for row in rows}))
    others = [name for name in swept if name != across]
    names = labels([{name: row[name] for name in others} for row in rows])
    values = [number(row, across) for row in rows]
    points = [
        Point(name, number(row, across), number(row, metric), note=str(row.get("trial", "")))
        for name, row in zip(names, rows, strict=True)
    ]
    ticks = tuple(sorted(set(values))) if len(set(values)) <= _MOST_TICKS else ()
    share = "accuracy" in metric or "top" in metric
    return [
        lines(
            f"sweep-{before + 1}",
            f"{cells.heading(metric)} by {cells.heading(across)}".capitalize(),
            points,
            Axis(
                cells.heading(across),
                "~g",
                "log" if max(values) > 8 * min(values) else "linear",
                ticks=ticks,
                nice=False,
            ),
            Axis(cells.heading(metric), ".1%" if share else "~s"),
        )
    ]
