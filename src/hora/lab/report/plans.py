"""The section on learning-rate plans: the rate at every moment of a run, as ``hora.schedule`` has it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from hora.lab.report import cells
from hora.lab.report.charts import Axis, ChartPoint, Figure, lines
from hora.lab.report.gather import ReportedRun, ReportInput
from hora.lab.report.label import labels
from hora.lab.report.learning import alike, group_title
from hora.lab.report.section import Section
from hora.schedule import LearningRatePlan

__all__ = ["plans"]

_MOST = 8  # series in the plot


def plans(gathered: ReportInput) -> Section | None:
    """The rate over the run, of every plan that differs, in a plot for those of one workload and about one length; runs
    that only measured speed have none worth showing."""
    learned = [m for m in gathered.experiments if m.experiment.kind not in ("throughput", "scaling")]
    runs = [ran for measured in learned for ran in measured.runs] + gathered.runs
    groups = alike([ran for ran in runs if ran.file and ran.file.plan and ran.epochs])
    figures, rows, notes = [], [], []
    for place, group in enumerate(groups):
        several = len(groups) > 1
        drawn, lines_of, more = _group(group, f"-{place + 1}" if several else "", group_title(group) if several else "")
        figures += drawn
        rows += lines_of
        notes += more
    if not rows:
        return None
    return Section(
        anchor="learning-rate",
        title="Learning-rate plans",
        figures=figures,
        tables=[cells.table(rows, "Plans")],
        notes=notes,
    )


def _group(
    runs: Sequence[ReportedRun], suffix: str, title: str
) -> tuple[list[Figure], list[dict[str, Any]], list[str]]:
    """A plot and rows of the table."""
    chosen: dict[str, tuple[str, LearningRatePlan]] = {}
    for name, ran in zip(_plan_names(runs), runs, strict=True):
        try:
            plan = msgspec.convert(ran.file.plan if ran.file else {}, LearningRatePlan)
        except (msgspec.ValidationError, ValueError):
            continue
        chosen.setdefault(repr(plan), (name, plan))
    if not chosen:
        return [], [], []
    points: list[ChartPoint] = []
    rows: list[dict[str, Any]] = []
    seen: set[str] = set()
    workload = next((ran.file.workload for ran in runs if ran.file), "")
    for name, plan in list(chosen.values()):
        name = next(each for each in (name, *(f"{name} ({n})" for n in range(2, 99))) if each not in seen)
        seen.add(name)
        rows.append(
            {"plan": name, "workload": workload, "rule": plan.rule, "workers": plan.workers, "batch": plan.batch,
             "global_batch": plan.global_batch, "base_lr": plan.base_lr, "peak_lr": plan.peak_lr,
             "warm-up": str(plan.warmup) if plan.warms_up else "none", "decay": str(plan.decay), "epochs": plan.epochs}
        )  # fmt: skip
        if len(rows) <= _MOST:
            points += [ChartPoint(name, at, plan.lr_at_epoch(at)) for at in _moments(plan)]
    figure = lines(
        f"learning-rate{suffix}",
        f"Learning rate over the run{title}",
        points,
        Axis("epoch", "~r", whole=max(point.x for point in points) > 2),
        Axis("learning rate", "~g", zero=True),
        dots=False,
    )
    more = (
        [f"The plot{title.replace(': ', ' of ')} has the first {_MOST} of {len(rows)} plans."]
        if len(rows) > _MOST
        else []
    )
    return [figure], rows, more


def _plan_names(runs: Sequence[ReportedRun]) -> list[str]:
    facts = []
    for ran in runs:
        assert ran.file is not None
        plan = ran.file.plan
        warmup = plan.get("warmup") or {}
        kind = warmup.get("kind") if isinstance(warmup, Mapping) else str(warmup[0]) if warmup else ""
        facts.append(
            {
                "workload": ran.file.workload, "workers": plan.get("workers"), "batch": plan.get("batch"),
                "rule": plan.get("rule"), "method": f"{kind} warm-up" if kind not in ("none", "", None) else "",
                "base_lr": plan.get("base_lr"), "epochs": plan.get("epochs"),
            }
        )  # fmt: skip
    return labels(facts)


def _moments(plan: LearningRatePlan) -> list[float]:
    """Where to look: evenly, and just before and at every epoch, where rates jump."""
    count = max(1, math.ceil(plan.epochs))
    if count <= 200:
        edges = [float(epoch) for epoch in range(count)] + [epoch + 1 - 1e-6 for epoch in range(count)]
    else:
        edges = []
    even = [plan.epochs * at / 120 for at in range(120)]
    return sorted(at for at in {*edges, *even} if at < plan.epochs)
