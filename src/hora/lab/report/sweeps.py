"""The section on sweeps: every point in a table, and the metric by the option with the most values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hora.lab.columns import column
from hora.lab.report import cells
from hora.lab.report.charts import Axis, ChartBar, ChartPoint, Figure, bars, lines
from hora.lab.report.gather import ReportedExperiment, ReportInput
from hora.lab.report.label import labels
from hora.lab.report.section import Section
from hora.lab.report.speed import number

__all__ = ["metric_of", "sweep", "varied"]

_MOST_TICKS = 8


def sweep(gathered: ReportInput) -> Section | None:
    """The points of sweeps: a table, and the metric by the option with the most values."""
    tables: list[cells.ReportTable] = []
    figures: list[Figure] = []
    for measured in gathered.of_kind("sweep"):
        tables.append(cells.table(measured.experiment.rows, measured.name, leave_out=["error"], about=measured.about))
        figures += [*_metric_figure(measured, len(figures)), *_choices_figure(measured)]
    return Section(anchor="sweep", title="Sweep", figures=figures, tables=tables) if tables else None


def varied(measured: ReportedExperiment, rows: Sequence[Mapping[str, Any]], metric: str) -> list[str]:
    """The options that the sweep varies; of a record that does not tell, whatever differs and is no result."""
    results = {
        "trial",
        "images_per_s",
        "time_s",
        "best",
        "state",
        "error",
        "peak_lr",
        "steps",
        "best_step",
        "top5",
        metric,
    }
    told = measured.experiment.options.get("swept")
    names = told if isinstance(told, list | tuple) and told else list(rows[0] if rows else {})
    return [name for name in map(str, names) if name not in results and len({str(row.get(name)) for row in rows}) > 1]


def metric_of(measured: ReportedExperiment) -> str:
    """What the points of a sweep are compared by."""
    return str(measured.experiment.options.get("metric") or "val_accuracy")


def _metric_axis(metric: str) -> Axis:
    return Axis(column(metric).title, ".1%" if "accuracy" in metric or "top" in metric else "~s")


def _done(measured: ReportedExperiment) -> list[dict[str, Any]]:
    return [row for row in measured.experiment.rows if row.get("state", "done") == "done"]


def _choices_figure(measured: ReportedExperiment) -> list[Figure]:
    """The best of each choice that is a word, such as the optimizer, with what it was reached with."""
    rows, metric = _done(measured), metric_of(measured)
    best = max if measured.experiment.options.get("highest", True) else min
    figures = []
    for name in measured.experiment.options.get("swept") or ():
        known = [row for row in rows if isinstance(row.get(name), str) and math.isfinite(number(row, metric))]
        choices = dict.fromkeys(str(row[name]) for row in known)
        if len(choices) < 2:
            continue
        parts = []
        for choice in choices:
            row = best((row for row in known if row[name] == choice), key=lambda row: number(row, metric))
            parts.append(ChartBar(choice, column(metric).title, number(row, metric), note=str(row.get("trial", ""))))
        caption = "The best run of each."
        title = f"Best {column(metric).title} by {column(name).title}"
        file = f"sweep-{measured.folder.name}-{name}"
        figures.append(bars(file, title, parts, _metric_axis(metric), caption=caption))
    return figures


def _metric_figure(measured: ReportedExperiment, before: int) -> list[Figure]:
    rows, metric = _done(measured), metric_of(measured)
    swept = varied(measured, rows, metric)
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
        ChartPoint(name, number(row, across), number(row, metric), note=str(row.get("trial", "")))
        for name, row in zip(names, rows, strict=True)
    ]
    ticks = tuple(sorted(set(values))) if len(set(values)) <= _MOST_TICKS else ()
    return [
        lines(
            f"sweep-{before + 1}",
            f"{column(metric).title} by {column(across).title}".capitalize(),
            points,
            Axis(
                column(across).title,
                "~g",
                "log" if max(values) > 8 * min(values) else "linear",
                ticks=ticks,
                nice=False,
            ),
            _metric_axis(metric),
        )
    ]
