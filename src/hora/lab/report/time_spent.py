"""The sections on where time and cores go: utilisation, and what each rank's communication did."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from hora.lab.columns import number_text
from hora.lab.report import cells
from hora.lab.report.charts import Axis, ChartBar, Figure, bars
from hora.lab.report.gather import ReportedTimeline, ReportInput
from hora.lab.report.section import Section
from hora.lab.report.speed import named, number, speed_rows
from hora.lab.report.use import over_time
from hora.timeline.numbers import RankTime

__all__ = ["timelines", "utilisation"]

_MOST_BARS = 24
_PARTS = {
    "moving": "move_us", "waiting for others": "wait_us", "queued": "queue_us", "copying": "copy_us",
    "nothing in flight": "idle_us",
}  # fmt: skip


def utilisation(gathered: ReportInput) -> Section | None:
    """CPU, GPU and memory, for every configuration that was measured."""
    rows = [row for row in speed_rows(gathered) if math.isfinite(number(row, "cpu_share"))]
    rows = rows or _of_trials(gathered)
    if not rows:
        return None
    everything = named(rows, "workers")
    shown = everything[:_MOST_BARS]
    cpu = [ChartBar(name, "CPU", number(row, "cpu_share"), note=_step(row)) for name, row in shown]
    gpu = [ChartBar(name, "GPU", value) for name, row in shown if math.isfinite(value := number(row, "gpu_share"))]
    memory = [ChartBar(name, "memory", number(row, "memory_mb") / 2**10) for name, row in shown]
    figures = [
        bars("cpu", "CPU", cpu, Axis("of the cores that the job may use", ".0%"), longest=1.0),
        *over_time(gathered),
        *([bars("gpu", "GPU", gpu, Axis("of the time", ".0%"), longest=1.0)] if gpu else []),
        *(
            [bars("memory", "Memory", memory, Axis("GB, at most, all processes together", "~r"))]
            if _any(memory)
            else []
        ),
    ]
    left_out = len(rows) - len(shown)
    return Section(
        anchor="utilisation",
        title="Utilisation",
        figures=figures,
        tables=[_table(everything)],
        notes=[f"{left_out} more are only in the table."] if left_out else [],
    )


def _of_trials(gathered: ReportInput) -> list[dict[str, Any]]:
    """Rows of experiments whose own rows do not have it, by factor or trial."""
    found: dict[str, list[dict[str, Any]]] = {}
    for ran in gathered.all_runs():
        if ran.outcome is not None and ran.outcome.done and math.isfinite(ran.outcome.cpu_share):
            trial = ran.outcome.trial
            name = ran.name.rpartition("-seed")[0] or ran.name
            found.setdefault(name, []).append(
                {
                    "title": name, "workers": trial.workers, "batch": trial.options.get("batch"),
                    "cpu_share": ran.outcome.cpu_share, "memory_mb": ran.outcome.memory_bytes / 2**20,
                    "gpu_share": ran.outcome.gpu_share, "first_batch_s": ran.outcome.first_batch_s,
                }
            )  # fmt: skip
    medians = ("cpu_share", "memory_mb", "first_batch_s")
    return [
        group[0] | {name: statistics.median(number(each, name) for each in group) for name in medians}
        for group in found.values()
    ]


def _any(parts: Sequence[ChartBar]) -> bool:
    return any(math.isfinite(part.value) and part.value > 0 for part in parts)


def _step(row: Mapping[str, Any]) -> str:
    step = number(row, "step_ms")
    return f"a step takes {number_text(step)} ms" if math.isfinite(step) else ""


def _table(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> cells.ReportTable:
    columns = ("cpu_share", "gpu_share", "memory_mb", "step_ms", "data_ms", "first_batch_s", "images_per_s_study")
    lines = [{"run": name, **{column: row.get(column) for column in columns}} for name, row in rows]
    return cells.table(lines, "Steps and resources")


# ---- timelines ----


def timelines(gathered: ReportInput) -> Section | None:
    """Where each rank's time goes, by its timeline."""
    if not gathered.spent:
        return None
    figures, rows = [], []
    for place, spent in enumerate(gathered.spent):
        figures.append(_breakdown(spent, place, several=len(gathered.spent) > 1))
        rows += [_row(spent.name, time) for time in spent.report.numbers.ranks]
    return Section(
        anchor="timeline",
        title="Where the time goes",
        words=[
            "What each rank's communication did at every instant, from its timeline. With nothing in flight a worker "
            "computes, loads data or idles. Exposed is the part that nothing hides: the step waits for it."
        ],
        figures=figures,
        tables=[cells.table(rows, "By rank")],
        notes=[note for spent in gathered.spent for note in spent.report.notes],
    )


def _breakdown(spent: ReportedTimeline, place: int, several: bool) -> Figure:
    ranks = spent.report.numbers.ranks[:32]
    parts = [
        ChartBar(f"rank {time.rank}", name, time.share(getattr(time, field)))
        for time in ranks
        for name, field in _PARTS.items()
        if any(getattr(each, field) for each in ranks)
    ]
    steps = ranks[0].steps if ranks else 0
    return bars(
        f"timeline-{place + 1}" if several else "timeline",
        spent.name if several else "Where each rank's time goes",
        parts,
        Axis("of the time", ".0%"),
        caption=f"Of {steps:,} steps; the first and the last are left out." if steps else "",
        quiet=["nothing in flight"],
        longest=1.0,
    )


def _row(name: str, time: RankTime) -> dict[str, Any]:
    return {
        "run": name,
        "rank": time.rank,
        "step_ms": time.step_us / 1e3 if time.steps else None,
        "moving_share": time.share(time.move_us),
        "copying_share": time.share(time.copy_us) or None,
        "queued_share": time.share(time.queue_us),
        "waiting_share": time.share(time.wait_us),
        "nothing_in_flight_share": time.share(time.idle_us),
        "exposed_share": time.share(time.exposed_us),
    }
