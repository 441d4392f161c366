"""The section on what was learned: error curves, and accuracy against one worker, beside what the study published."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from hora.lab.columns import value_text
from hora.lab.records.words import PLACES
from hora.lab.report import cells
from hora.lab.report.charts import EPOCHS, Axis, ChartPoint, Figure, by_count, grid, lines
from hora.lab.report.gather import ReportedExperiment, ReportedRun, ReportInput
from hora.lab.report.label import labels
from hora.lab.report.section import Section
from hora.lab.report.speed import number
from hora.predict import published
from hora.text import plural
from hora.workloads import WORKLOADS, options_of

__all__ = ["alike", "group_title", "quality", "run_names"]

Row = Mapping[str, Any]
_MOST = 8  # series in a plot of runs
_FEWEST_PANELS, _MOST_PANELS, _MOST_COLUMNS = 3, 24, 4  # of a grid
_LONGER = 3.0  # times as many epochs as the shortest fit in one plot
_LONGEST_NAME = 60  # letters in a legend
_STUDY_TABLES = {10: "naive", 11: "linear", 12: "stepping", 13: "reduced-batch", 14: "gradual5", 15: "gradual10"}
_BASELINE = "one worker"
_SAID = [
    "curve",
    "budgets",
    "best_top1_seeds",
    "best_top1_spread",
    "error",
    "what",
    "gpus",
    "processes",
]  # drawn, or in the notes


def quality(gathered: ReportInput) -> Section | None:
    """Error curves, and what was reached beside one worker."""
    figures: list[Figure] = []
    tables: list[cells.ReportTable] = []
    reference: list[cells.ReportTable] = []
    for measured in gathered.experiments:
        rows = measured.experiment.rows
        if not any(row.get("curve") or "best_top1" in row for row in rows):
            continue
        rows = [row for row in rows if "factor" in row] or rows
        figures += _grid(rows, len(figures))
        figures += _curves(rows, len(figures))
        figures += _by_factor(rows, len(figures))
        if measured.experiment.kind in ("quality", "study"):
            figures += _against_one(rows, len(figures))
            first = ("factor", "workers", "batch", "global_batch", "peak_lr", "best_top1", "vs_baseline")
            tables.append(
                cells.table(rows, f"{measured.name}: accuracy", first=first, leave_out=_SAID, about=measured.about)
            )
            tables += _budgets(rows, measured)
            reference = [_published_table()]
    figures += _curves_of_runs([*gathered.runs, *_sweep_runs(gathered)], len(figures))
    learned = [ran for ran in gathered.runs if ran.file and ran.file.result and ran.file.workload != "gan3d"]
    if rows_of_runs := [_result_row(ran) for ran in learned]:
        tables.append(cells.table(rows_of_runs, "Runs"))
    if not figures and not tables:
        return None
    return Section(
        anchor="quality", title="What was learned", figures=figures, tables=tables, reference=reference
    )  # fmt: skip


def _grid(rows: Sequence[Row], before: int) -> Iterator[Figure]:
    """A small plot for every schedule on every number of workers, with one worker in each."""
    drawn = [row for row in rows if row.get("curve") and row.get("factor")]
    base = [row for row in drawn if row["factor"] == "baseline"]
    mine = [row for row in drawn if row not in base]
    if len(mine) < _FEWEST_PANELS:
        return
    factors = list(dict.fromkeys(row["factor"] for row in mine))
    mine.sort(key=lambda row: (factors.index(row["factor"]), row["workers"]))
    counts = len({row["workers"] for row in mine})
    panels = {
        f"{row['factor']}, {plural(row['workers'], 'worker')}": [
            point
            for each, names in ((row, ("validation", "training")), *((one, (_BASELINE, "")) for one in base[:1]))
            for point in _both(each["curve"], *names)
        ]
        for row in mine
    }
    columns = counts * (_MOST_COLUMNS // counts) if counts <= _MOST_COLUMNS else counts if counts < 7 else _MOST_COLUMNS
    yield _panels(f"error-grid-{before + 1}", "Error by schedule and number of workers", panels, columns)


def _both(curve: Mapping[str, Any], validation: str, training: str) -> Iterator[ChartPoint]:
    """Points of a run by epoch: of validation, and of training if that has a name."""
    for key, name in (("val_error", validation), ("train_error", training)):
        for epoch, error in zip(curve["epoch"], curve[key], strict=False):
            if name:
                yield ChartPoint(name, epoch, _share(error), style="dashed" if name == training else "solid")


def _panels(name: str, title: str, panels: Mapping[str, Sequence[ChartPoint]], columns: int = _MOST_COLUMNS) -> Figure:
    one = any(point.series == _BASELINE for points in panels.values() for point in points)
    return grid(
        name,
        title,
        panels,
        EPOCHS,
        Axis("error (top-1)", ".0~%"),
        caption="All with the same axes." + (" In grey, one worker's validation." if one else ""),
        quiet=[_BASELINE],
        columns=columns,
    )


def _curves(rows: Sequence[Row], before: int) -> Iterator[Figure]:
    """A plot for every number of workers, with one worker in each."""
    drawn = [row for row in rows if row.get("curve")]
    base = [row for row in drawn if row["workers"] == 1 and row.get("factor", "baseline") == "baseline"]
    counts = sorted({row["workers"] for row in drawn} - {1}) or [1]
    for count in counts:
        chosen = [row for row in drawn if row["workers"] == count or row in base]
        names = [
            _BASELINE if row in base and count > 1 else name for row, name in zip(chosen, _names(chosen), strict=True)
        ]
        points = []
        for name, row in zip(names, chosen, strict=True):
            curve = row["curve"]
            low, high = curve.get("val_error_low", []), curve.get("val_error_high", [])
            for at, epoch in enumerate(curve["epoch"]):
                sure = (row.get("seeds") or 1) > 1 and at < len(low)  # one seed has no spread
                ends = (_share(low[at]), _share(high[at])) if sure else (math.nan, math.nan)
                validation, training = _share(curve["val_error"][at]), _share(curve["train_error"][at])
                points.append(ChartPoint(name, epoch, validation, ends[0], ends[1], note="validation"))
                points.append(ChartPoint(name, epoch, training, style="dashed", note="training"))
        emulated = any(row.get("emulated") for row in chosen if row["workers"] == count)
        yield _errors(
            f"error-curves-{before + 1}-{count}",
            f"Error with {count} workers{', emulated' if emulated else ''}" if count > 1 else "Error",
            points,
            [_BASELINE],
        )


def _by_factor(rows: Sequence[Row], before: int) -> Iterator[Figure]:
    """A plot for every schedule, with a curve for each number of workers: do they coincide?"""
    drawn = [row for row in rows if row.get("curve") and row.get("factor")]
    base = [row for row in drawn if row["factor"] == "baseline"]
    for place, factor in enumerate(dict.fromkeys(row["factor"] for row in drawn if row["factor"] != "baseline")):
        mine = sorted((row for row in drawn if row["factor"] == factor), key=lambda row: row["workers"])
        if len({row["workers"] for row in mine}) < 2:
            continue
        points = [
            ChartPoint(
                _BASELINE if row in base else f"{row['workers']} workers", epoch, _share(error), note="validation"
            )
            for row in [*base, *mine]
            for epoch, error in zip(row["curve"]["epoch"], row["curve"]["val_error"], strict=False)
        ]
        yield _errors(
            f"schedule-{before + 1}-{place + 1}",
            f"{factor}: validation error by number of workers",
            points,
            [_BASELINE],
            caption="Curves that coincide have lost nothing to the larger batch.",
        )


def _names(rows: Sequence[Row]) -> list[str]:
    keys = ("factor", "experiment", "what", "framework", "batch")
    facts = [
        {("name" if key == "factor" else key): row[key] for key in keys if row.get(key) is not None} for row in rows
    ]
    if all("name" in each for each in facts):
        return [str(each["name"]) for each in facts]
    return labels(facts)


def _share(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _errors(
    name: str,
    title: str,
    points: Sequence[ChartPoint],
    quiet: Sequence[str] = (),
    *,
    x: Axis = EPOCHS,
    top: int = 1,
    caption: str = "Solid: validation, dashed: training.",
) -> Figure:
    spread = any(math.isfinite(point.low) for point in points)
    return lines(
        name,
        title,
        points,
        x,
        Axis(f"error (top-{top})", ".1~%"),
        caption=caption + (" Vertical lines: from the best to the worst seed." if spread else ""),
        quiet=quiet,
        dots=len(points) <= 160,
    )


def _result_row(ran: ReportedRun) -> dict[str, Any]:
    assert ran.file is not None
    result = ran.file.result
    known = [line for line in ran.epochs if isinstance(line.get("val_accuracy"), int | float)]
    best = max(known, key=lambda line: float(line["val_accuracy"]), default={})
    options = ran.file.options
    return {
        "run": ran.name, "workload": ran.file.workload, "workers": ran.file.workers,
        **{name: result.get(name) for name in ("batch", "epochs", "steps")},
        "top1": result.get("val_accuracy"), "top5": result.get("val_top5"),
        "best_top1": result.get("best_val_accuracy"), "at_step": best.get("step"),
        "val_loss": None if "val_accuracy" in result else result.get("val_loss"),
        **{name: result.get(name) for name in ("images_per_s", "seconds", "peak_lr")},
        "optimizer": options.get("optimizer"), "decay": options.get("decay"),
        "strategy": result.get("strategy"), "seed": result.get("seed"),
    }  # fmt: skip


def _sweep_runs(gathered: ReportInput) -> list[ReportedRun]:
    return [ran for m in gathered.experiments if m.experiment.kind == "sweep" for ran in m.runs]


def _curves_of_runs(runs: Sequence[ReportedRun], before: int) -> list[Figure]:
    """Runs by themselves and those of sweeps, with those of their workload and length; the best if they are many."""
    figures: list[Figure] = []
    for group in alike(runs):
        figures += _curves_of_group(group, before + len(figures), len(runs) > len(group))
    return figures


def alike(runs: Sequence[ReportedRun]) -> list[list[ReportedRun]]:
    """Runs of one workload that are about as long as each other: those that one plot can show. One long run would
    squash all others into a corner."""

    def length(ran: ReportedRun) -> float:
        epochs = ran.file.plan.get("epochs") if ran.file else None
        return float(epochs) if isinstance(epochs, int | float) else float(len(ran.epochs))

    groups: list[list[ReportedRun]] = []
    for ran in sorted(runs, key=lambda ran: (ran.file.workload if ran.file else "", length(ran))):
        first = groups[-1][0] if groups else None
        same = first is not None and (first.file and first.file.workload) == (ran.file and ran.file.workload)
        if first is not None and same and length(ran) <= _LONGER * length(first):
            groups[-1].append(ran)
        else:
            groups.append([ran])
    return groups


def group_title(group: Sequence[ReportedRun]) -> str:
    """
    >>> group_title([])
    ''
    """
    epochs = sorted({number(ran.file.plan, "epochs") for ran in group if ran.file})
    workload = next((ran.file.workload for ran in group if ran.file), "")
    span = f"{epochs[0]:g}" + (f" to {epochs[-1]:g}" if epochs[-1] > epochs[0] else "") if epochs else ""
    return f": {workload}, {span} epoch{'' if span == '1' else 's'}" if workload else ""


def _curves_of_group(runs: Sequence[ReportedRun], before: int, several: bool) -> list[Figure]:
    chosen = [ran for ran in runs if len([line for line in ran.epochs if "val_accuracy" in line]) > 1]
    chosen.sort(key=lambda ran: -max(_share(line.get("val_accuracy", 0)) for line in ran.epochs))
    everything, left_out, chosen = chosen, len(chosen) - _MOST, chosen[:_MOST]
    if not chosen:
        return []
    points, by_step, by_time, top5 = [], [], [], []
    for name, ran in zip(run_names(chosen), chosen, strict=True):
        seconds = 0.0
        for line in ran.epochs:
            at = line.get("epoch", 0) + 1
            seconds += _share(line.get("epoch_s"))
            error = 1 - _share(line.get("val_accuracy"))
            by_step.append(ChartPoint(name, _share(line.get("step")), error))
            by_time.append(ChartPoint(name, seconds / 60, error))
            top5.append(ChartPoint(name, at, 1 - _share(line.get("val_top5"))))
            points.append(ChartPoint(name, at, error, note="validation"))
            points.append(ChartPoint(name, at, 1 - _share(line.get("accuracy")), style="dashed", note="training"))
    title = f"Error of the best {_MOST} of {_MOST + left_out} runs" if left_out > 0 else "Error of runs"
    title += group_title(runs) if several else ""
    figures = [_errors(f"error-curves-{before + 1}-runs", title, points)]
    if any(math.isfinite(point.y) for point in top5):
        file = f"error-curves-{before + 1}-runs-top5"
        figures.append(_errors(file, f"{title}: top-5", top5, top=5, caption="Of validation."))
    if len(everything) >= _FEWEST_PANELS:
        figures.append(_grid_of_runs(everything[:_MOST_PANELS], before, group_title(runs) if several else ""))
    for drawn, word, axis in ((by_step, "step", Axis("step", "~s")), (by_time, "time", Axis("minutes", "~r"))):
        if len(chosen) > 1 and all(math.isfinite(point.x) for point in drawn):  # one run looks the same by either
            file = f"error-curves-{before + 1}-runs-by-{word}"
            figures.append(_errors(file, f"{title}, by {word}", drawn, x=axis, caption="Of validation."))
    return figures


def _grid_of_runs(runs: Sequence[ReportedRun], before: int, of: str) -> Figure:
    panels: dict[str, list[ChartPoint]] = {}
    for name, ran in zip(run_names(runs), runs, strict=True):
        curve = {
            "epoch": [line.get("epoch", 0) + 1 for line in ran.epochs],
            "val_error": [1 - _share(line.get("val_accuracy")) for line in ran.epochs],
            "train_error": [1 - _share(line.get("accuracy")) for line in ran.epochs],
        }
        panels[name] = list(_both(curve, "validation", "training"))
    return _panels(f"error-grid-{before + 1}-runs", f"Error of each run{of}", panels)


def run_names(runs: Sequence[ReportedRun]) -> list[str]:
    """Names of runs: the options that differ; their folders if none or too many do."""
    skipped = (*PLACES, "data")
    facts = []
    for ran in runs:
        given = ran.file.options if ran.file else ran.outcome.trial.options if ran.outcome else {}
        options = {**(_defaults(ran.file.workload) if ran.file else {}), **given}
        workers = ran.file.workers if ran.file else ran.outcome.trial.workers if ran.outcome else 1
        workload = ran.file.workload if ran.file else ""
        facts.append(
            {"workload": workload, "workers": workers, **{k: v for k, v in options.items() if k not in skipped}}
        )
    names = labels(facts)
    if len(set(names)) == len(names) and max(map(len, names)) <= _LONGEST_NAME:
        return names
    folders = [ran.folder.name for ran in runs]
    return folders if len(set(folders)) == len(folders) else [str(ran.folder) for ran in runs]


def _defaults(workload: str) -> dict[str, Any]:
    """What a record of an older version does not say."""
    if workload not in WORKLOADS:
        return {}
    found: dict[str, Any] = msgspec.to_builtins(options_of(workload).of({}))
    return found


# ---- against one worker ----


def _against_one(rows: Sequence[Row], before: int) -> list[Figure]:
    """Accuracy more or less than one worker's, beside the study's."""
    points = [
        ChartPoint(
            str(row["factor"]), row["workers"], number(row, "vs_baseline"), number(row, "vs_baseline_low"),
            number(row, "vs_baseline_high"), note=f"{value_text('top1', row.get('best_top1'))} top-1",
        )
        for row in rows if math.isfinite(number(row, "vs_baseline"))
    ]  # fmt: skip
    if not points:
        return []
    present = {point.series for point in points}
    study = [
        ChartPoint(f"study: {name}", workers, change, style="dashed", note=f"{top1:.2f} % top-1, ImageNet")
        for name, workers, change, top1 in _study_changes()
        if name in present
    ]
    zero = [
        ChartPoint(_BASELINE, x, 0.0, style="dashed")
        for x in (min(p.x for p in points + study), max(p.x for p in points + study))
    ]
    everything = [*points, *zero, *study]
    return [
        lines(
            f"against-one-worker-{before + 1}",
            "Best top-1 against one worker",
            everything,
            by_count("workers", everything),
            Axis("change in accuracy", "+.1%"),
            caption="Vertical lines are 95 % intervals over seeds. In grey, the study's 90 epochs of ImageNet.",
            quiet=[_BASELINE, *dict.fromkeys(point.series for point in study)],
        )
    ]


def _study_changes() -> Iterator[tuple[str, int, float, float]]:
    """Factor, workers, change against one GPU as a share, and top-1; some tables have no baseline of their own."""
    rows = published.training_times()
    usual = next(row.top1 for row in rows if row.table == 11 and row.workers == 1)
    for table, name in _STUDY_TABLES.items():
        mine = [row for row in rows if row.table == table]
        base = next((row.top1 for row in mine if row.workers == 1), usual)
        for row in mine:
            if row.workers > 1:
                yield name, row.workers, (row.top1 - base) / 100, row.top1


def _published_table() -> cells.ReportTable:
    rows = [
        {
            "method": _STUDY_TABLES[row.table], "table": row.table, "framework": row.framework, "batch": row.batch,
            "workers": row.workers, "top1": row.top1 / 100, "top5": row.top5 / 100,
            "time_hours": row.minutes and round(row.minutes / 60, 1),
        }
        for row in published.training_times()
    ]  # fmt: skip
    return cells.table(rows, "The study's accuracy, tables 10 to 15", note="ResNet-50, ImageNet, 90 epochs.")


def _budgets(rows: Sequence[Row], measured: ReportedExperiment) -> list[cells.ReportTable]:
    """What is reached in a fixed time."""
    found = []
    for row in rows:
        line: dict[str, Any] = {"factor": row.get("factor"), "workers": row.get("workers")}
        for budget in row.get("budgets") or ():
            line[f"top-1 after {budget['minutes']:g} min"] = budget.get("top1")
            line["how"] = budget.get("how")
        if len(line) > 2:
            found.append(line)
    title = f"{measured.name}: what is reached in a fixed time"
    return [cells.table(found, title, about=measured.about)] if found else []
