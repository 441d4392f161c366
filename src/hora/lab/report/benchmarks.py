"""The section on benchmarks: what `hora bench --json` wrote, as it stands there."""

from __future__ import annotations

from typing import Any

from hora.bench.plan import BenchRow, Result
from hora.bench.show import TITLES, provenance
from hora.lab.report import cells
from hora.lab.report.charts import Axis, ChartPoint, Figure, lines
from hora.lab.report.gather import ReportInput
from hora.lab.report.section import Section
from hora.lab.show import capital

__all__ = ["benchmarks"]

_SIZE = (
    "datum.value < 1024 ? datum.value + ' B' : datum.value < 1048576 ? datum.value / 1024 + ' KB' "
    ": datum.value / 1048576 + ' MB'"
)


def benchmarks(gathered: ReportInput) -> Section | None:
    """A table for each, and a plot where a size is what differs."""
    if not gathered.benches:
        return None
    figures, tables = [], []
    for place, (_, result) in enumerate(gathered.benches):
        title = capital(f"{TITLES.get(result.bench, result.bench)}, {result.np} workers")
        if len([row for row in result.rows if row.bytes]) > 1:
            figures.append(_by_size(result, title, place))
        rows = [_row(result, row) for row in result.rows]
        note = " ".join(
            [f"Median of rounds, from the 10th to the 90th percentile. {provenance(result)}.", *result.notes]
        )
        tables.append(cells.table(rows, title, note=note))
    return Section(anchor="benchmarks", title="Benchmarks", figures=figures, tables=tables)


def _row(result: Result, row: BenchRow) -> dict[str, Any]:
    made: dict[str, Any] = {"what": row.name}
    for key, label in result.labels.items():
        if (cell := row.cells.get(key)) is not None:
            name = f"{label} (ms)"
            made |= {name: cell.median_us / 1e3, f"{name}_low": cell.low_us / 1e3, f"{name}_high": cell.high_us / 1e3}
            if key in row.shares and key != "limit":
                made[f"{label} of the limit"] = row.shares[key]
    return made


def _by_size(result: Result, title: str, place: int) -> Figure:
    points = [
        ChartPoint(
            result.labels[key], row.bytes, cell.median_us / 1e3, cell.low_us / 1e3, cell.high_us / 1e3, note=row.name
        )
        for key in result.labels
        for row in result.rows
        if row.bytes and (cell := row.cells.get(key)) is not None
    ]
    return lines(
        f"bench-{place + 1}-{result.bench}",
        title,
        points,
        Axis("size", "~s", "log", 2, ticks=tuple(row.bytes for row in result.rows if row.bytes), label=_SIZE),
        Axis("ms", ",.3~r", "log"),
        caption="Lower is faster. Vertical lines: from the 10th to the 90th percentile of the rounds.",
        quiet=[result.labels["memcpy"]] if "memcpy" in result.labels else [],
    )
