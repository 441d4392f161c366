"""Cores and GPUs over time, by rank: whether all of them work all the time, or some wait for others."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hora.lab.report.charts import Axis, ChartPoint, Figure, lines
from hora.lab.report.gather import ReportedRun, ReportInput

__all__ = ["over_time"]

_MOST_RUNS, _MOST_RANKS = 3, 8


def over_time(gathered: ReportInput) -> list[Figure]:
    """A plot for the largest of the runs that were watched."""
    watched = [ran for ran in gathered.all_runs() if ran.outcome is not None and ran.outcome.cpu_over_time]
    watched.sort(key=lambda ran: (-ran.outcome.trial.workers, -ran.outcome.seconds) if ran.outcome else (0, 0.0))
    figures = []
    for place, ran in enumerate(watched[:_MOST_RUNS]):
        figures += _of_run(ran, place, several=len(watched) > 1)
    return figures


def _of_run(ran: ReportedRun, place: int, *, several: bool) -> list[Figure]:
    assert ran.outcome is not None
    of = f": {ran.name}" if several else ""
    drawn = [
        ("cpu", "Cores used by each rank", "rank", ran.outcome.cpu_over_time, Axis("cores", ".2~r", zero=True)),
        ("gpu", "Use of each GPU", "GPU", ran.outcome.gpu_over_time, Axis("of the time", ".0%", zero=True)),
    ]
    return [
        lines(
            f"{kind}-over-time-{place + 1}",
            f"{title}{of}",
            points,
            Axis("seconds since the start", "~r"),
            axis,
            caption="Processes that load data count with their rank." if kind == "cpu" else "",
            dots=False,
        )
        for kind, title, who, rows, axis in drawn
        if (points := _points(rows, who))
    ]


def _points(rows: Sequence[Sequence[float]], who: str) -> list[ChartPoint]:
    """A row is a time and a value for each rank."""
    return [
        ChartPoint(f"{who} {number}", row[0], value)
        for row in rows
        for number, value in enumerate(row[1 : 1 + _MOST_RANKS])
        if math.isfinite(value)
    ]
