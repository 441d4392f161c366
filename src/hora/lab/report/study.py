"""The section on the reference study in miniature: its throughput here, beside its own. What was learned, its
experiments 4 to 9, is with all else that was."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hora.lab.report import cells
from hora.lab.report.charts import Axis, ChartPoint, Figure, Style, by_count, lines
from hora.lab.report.gather import ReportInput
from hora.lab.report.section import Section
from hora.lab.report.speed import number

__all__ = ["study"]

Row = Mapping[str, Any]


def study(gathered: ReportInput) -> Section | None:
    """Speed-up by workers, for every framework of the study and what stands for it here."""
    figures, tables = [], []
    for place, measured in enumerate(m for m in gathered.experiments if m.experiment.kind == "study"):
        rows = [row for row in measured.experiment.rows if row.get("what") == "throughput"]
        if not rows:
            continue
        figures += _speed_ups(rows, place)
        tables.append(
            cells.table(
                rows,
                f"{measured.name}: throughput",
                first=("framework", "here", "workers", "batch", "images_per_s", "speed_up", "published_speed_up"),
                leave_out=["what", "gpus", "experiment", "steady_images_per_s", "first_batch_s"],
                about=measured.about,
            )
        )
    if not tables:
        return None
    words = [
        "The study's frameworks and what stands for them here, each over one worker of its own, at its largest batch. "
        "Filled marks and solid lines were measured here; hollow marks and dotted lines are predicted, for more "
        "workers than there are cores. In grey, what the study published."
    ]
    return Section(anchor="study", title="The study in miniature", words=words, figures=figures, tables=tables)


def _speed_ups(rows: Sequence[Row], place: int) -> list[Figure]:
    """The speed-ups at the largest batch of each framework."""
    most: dict[str, float] = {}
    for row in rows:
        most[row["framework"]] = max(most.get(row["framework"], 0.0), number(row, "batch"))
    chosen = [row for row in rows if number(row, "batch") == most[row["framework"]]]
    points, quiet = [], []
    for row in chosen:
        here, there = str(row.get("here") or row["framework"]), f"study: {row['framework']}"
        quiet.append(there)
        style: Style = "predicted" if row.get("state") == "predicted" else "solid"
        note = "predicted" if style == "predicted" else "measured"
        points.append(ChartPoint(here, number(row, "workers"), number(row, "speed_up"), style=style, note=note))
        points.append(ChartPoint(there, number(row, "gpus"), number(row, "published_speed_up"), style="dashed"))
    points = [point for point in points if math.isfinite(point.y)]
    if not points:
        return []
    for series in {point.series for point in points if point.style == "predicted"}:
        last = max((p for p in points if p.series == series and p.style == "solid"), key=lambda p: p.x, default=None)
        if last is not None:  # where the prediction begins
            points.append(last._replace(style="predicted", dot=False))
    workers = by_count("workers", points)
    top = max(workers.ticks)
    points += [ChartPoint("ideal", at, at, style="dashed") for at in (1.0, top) if top > 1]
    return [
        lines(
            f"study-speed-up-{place + 1}",
            "Speed-up, here and in the study",
            points,
            workers,
            Axis("times one worker", "~r", "log", 2),
            quiet=["ideal", *dict.fromkeys(quiet)],
        )
    ]
