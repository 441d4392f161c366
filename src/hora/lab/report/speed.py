"""The sections on speed: how throughput grows with workers and batch, and how close that comes to the ideal.

The reference study's speed-ups and efficiencies stand beside in grey: other machines, the same question.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hora.lab.report import cells
from hora.lab.report.charts import Axis, ChartBar, ChartPoint, Figure, WaterfallBar, bars, by_count, lines, waterfall
from hora.lab.report.gather import ReportedExperiment, ReportedRun, ReportInput
from hora.lab.report.label import labels
from hora.lab.report.section import Section
from hora.lab.scaling.waterfall import above_ideal
from hora.lab.throughput.strategies import compared
from hora.predict import published
from hora.text import share_text, time_text

__all__ = ["named", "scaling", "series_of", "speed_rows", "throughput"]

Row = dict[str, Any]
_SERIES = ("workload", "mode", "batch", "global_batch", "threads", "transport", "strategy")
_INTERVALS = "Vertical lines are 90 % intervals."
_IDEAL = "ideal"
_ALONE = "without communication"
_FIRST = ("mode", "workers", "batch", "images_per_s", "speed_up", "efficiency", "limit_images_per_s", "share_of_limit")
_RESOURCES = (
    "step_ms",
    "data_ms",
    "cpu_share",
    "memory_mb",
    "first_batch_s",
    "images_per_s_study",
    "study_steps",
)  # in a table of their own
_WAY = ("waterfall", "above_ideal", "slower_than_one", "link")  # drawn, marked, or said


def number(row: Mapping[str, Any], *names: str) -> float:
    """The first of these that is known, as a number; nan if none is.

    >>> number({"low": None, "high": 3}, "low", "high")
    3.0
    """
    for name in names:
        value = row.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    return math.nan


def speed_rows(gathered: ReportInput) -> list[Row]:
    """A row for all that was measured on a number of workers: of experiments on speed; if there are none, of runs,
    whose images/s have warm-up and everything else in them."""
    rows: list[Row] = []
    for measured in gathered.experiments:
        experiment = measured.experiment
        if experiment.kind not in ("throughput", "scaling"):
            continue
        workload = experiment.options.get("workload") or next(
            (ran.outcome.trial.workload for ran in measured.runs if ran.outcome), ""
        )
        for row in experiment.rows:
            rows.append({"title": measured.name, "workload": workload, "kind": experiment.kind, **row})
    return rows or [row for row in map(_of_run, gathered.runs) if row is not None]


def _of_run(ran: ReportedRun) -> Row | None:
    """A row of a single run; the lab's figures if it has them."""
    if ran.file is None or not ran.file.result:
        return None
    result, outcome = ran.file.result, ran.outcome
    row: Row = {
        "title": "runs", "workload": ran.file.workload, "kind": "run", "workers": ran.file.workers,
        "batch": result.get("batch", ran.file.options.get("batch")), "images_per_s": result.get("images_per_s"),
        "threads": ran.file.threads_per_worker or None, "first_batch_s": result.get("first_batch_s"),
    }  # fmt: skip
    if outcome is not None and math.isfinite(outcome.images_per_s):
        row |= {
            "images_per_s": outcome.images_per_s, "low": outcome.images_per_s_low, "high": outcome.images_per_s_high,
            "cpu_share": outcome.cpu_share, "memory_mb": outcome.memory_bytes / 2**20 or None,
        }  # fmt: skip
    return row if math.isfinite(number(row, "images_per_s")) else None


def series_of(row: Mapping[str, Any]) -> Row:
    """What makes a row part of one line over workers: in strong scaling the batch of the job, else that of a worker.

    >>> series_of({"mode": "strong", "workers": 2, "batch": 32, "global_batch": 64, "transport": "shm"})
    {'mode': 'strong', 'global_batch': 64}
    """
    left_out = {"strong": ("batch", "transport"), "weak": ("global_batch", "transport")}.get(row.get("mode", ""), ())
    return {name: row[name] for name in _SERIES if row.get(name) not in (None, "", "auto") and name not in left_out}


def named(
    rows: Sequence[Mapping[str, Any]], *more: str, leave_out: Sequence[str] = ()
) -> list[tuple[str, Mapping[str, Any]]]:
    """Rows with the name of their series, or of more than that; the experiment's name is in it only where two would be
    the same."""
    facts = [
        {**{name: row.get(name) for name in more}, **{k: v for k, v in series_of(row).items() if k not in leave_out}}
        for row in rows
    ]
    names = labels(facts)
    owners: dict[str, set[str]] = {}
    for name, row in zip(names, rows, strict=True):
        owners.setdefault(name, set()).add(str(row.get("title", "")))
    if any(len(titles) > 1 for titles in owners.values()):
        names = [
            f"{name}, {_of_its_own(str(row['title']))}" if len(owners[name]) > 1 else name
            for name, row in zip(names, rows, strict=True)
        ]
    return list(zip(names, rows, strict=True))


def _of_its_own(title: str) -> str:
    """What distinguishes an experiment from others of its title, or all of its name.

    >>> _of_its_own("mnist: scaling (before)"), _of_its_own("mnist: scaling")
    ('before', 'mnist: scaling')
    """
    return title.rpartition(" (")[2].removesuffix(")") if title.endswith(")") else title


# ---- throughput ----


def throughput(gathered: ReportInput) -> Section | None:
    """Images/s by workers, and by batch."""
    rows = [row for row in speed_rows(gathered) if math.isfinite(number(row, "images_per_s"))]
    if not rows:
        return None
    figures = [_by_workers(rows)] if len({row["workers"] for row in rows}) > 1 else []
    if len({row.get("batch") for row in rows if row["kind"] == "throughput"}) > 1:
        figures.append(_by_batch([row for row in rows if row["kind"] == "throughput"]))
    tables = [
        cells.table(
            measured.experiment.rows,
            measured.name,
            first=_FIRST,
            leave_out=["error", *_RESOURCES],
            about=measured.about,
        )
        for measured in gathered.of_kind("throughput")
    ]
    words = [f"{text}." for text in compared([row for row in rows if row["kind"] == "throughput"])]
    return Section(anchor="throughput", title="Throughput", words=words, figures=figures, tables=tables)


def _by_workers(rows: Sequence[Row]) -> Figure:
    points, limits = [], False
    for name, row in named(rows):
        workers = number(row, "workers")
        points.append(
            ChartPoint(
                name, workers, number(row, "images_per_s"), number(row, "low"), number(row, "high"), note=_note(row)
            )
        )
        if workers > 1 and math.isfinite(limit := number(row, "limit_images_per_s")):
            limits = True
            points.append(ChartPoint(name, workers, limit, style="dashed", note=_ALONE))
    for name, row in named(rows) if limits else ():
        if number(row, "workers") == 1:  # one worker is its own limit: where the dashed line begins
            points.append(ChartPoint(name, 1, number(row, "images_per_s"), style="dashed"))
    caption = f"{_INTERVALS} Dashed: the same processes at once, each training alone, without communication."
    return lines(
        "throughput-by-workers",
        "Throughput by workers",
        points,
        by_count("workers", points),
        Axis("images/s", ",.4~r", zero=True),
        caption=caption if limits else _INTERVALS if any(math.isfinite(p.low) for p in points) else "",
    )


def _by_batch(rows: Sequence[Row]) -> Figure:
    points = [
        ChartPoint(name, number(row, "batch"), number(row, "images_per_s"), number(row, "low"), number(row, "high"))
        for name, row in named(rows, "workers", leave_out=["batch"])
    ]
    return lines(
        "throughput-by-batch",
        "Throughput by batch size of a worker",
        points,
        by_count("batch", points),
        Axis("images/s", ",.4~r", zero=True),
        caption=_INTERVALS,
    )


def _note(row: Mapping[str, Any]) -> str:
    wait, step = number(row, "data_ms"), number(row, "step_ms")
    return f"{wait / step:.0%} of a step waits for data" if math.isfinite(wait) and step > 0 else ""


# ---- scaling ----


class SpeedUp(NamedTuple):
    """Over one worker of the same series, with its interval; and what the limit has."""

    series: str
    workers: float
    value: float
    low: float = math.nan
    high: float = math.nan
    limit: float = math.nan


def _speed_ups(rows: Sequence[Row]) -> Iterator[SpeedUp]:
    """The speed-ups in the rows, or computed from their images/s."""
    pairs = named(rows)
    for name in dict.fromkeys(name for name, row in pairs if row.get("strategy") == "ddp"):
        yield SpeedUp(name, 1.0, 1.0)  # one worker averages with nobody: it stands in Hora's rows
    base = {_apart(row): number(row, "images_per_s") for _, row in pairs if number(row, "workers") == 1}
    for name, row in pairs:
        workers, one = number(row, "workers"), base.get(_apart(row), math.nan)
        if math.isfinite(known := number(row, "speed_up")):
            low, high = number(row, "speed_up_low"), number(row, "speed_up_high")
            yield SpeedUp(name, workers, known, low, high, workers * number(row, "limit_efficiency"))
        elif math.isfinite(one) and one > 0:
            limit = number(row, "limit_images_per_s") / one
            yield SpeedUp(name, workers, number(row, "images_per_s") / one, limit=limit)


def _apart(row: Mapping[str, Any]) -> tuple[str, ...]:
    """What rows have in common that are compared with the same single worker: all but who averages."""
    series = {name: value for name, value in series_of(row).items() if name != "strategy"}
    return (str(row.get("title")), *(f"{name} {value}" for name, value in sorted(series.items())))


def scaling(gathered: ReportInput) -> Section | None:
    """Speed-up and efficiency, beside the ideal and what the study has published."""
    rows = [row for row in speed_rows(gathered) if math.isfinite(number(row, "images_per_s"))]
    found = list(_speed_ups(rows))
    most = max((each.workers for each in found), default=1)
    if most <= 1:
        return None
    tables = [
        cells.table(
            measured.experiment.rows,
            measured.name,
            first=_FIRST,
            leave_out=[
                "speed_up_low",
                "speed_up_high",
                "ideal_images_per_s",
                "global_batch",
                "error",
                *_RESOURCES,
                *_WAY,
            ],
            about=measured.about,
        )
        for measured in gathered.of_kind("scaling")
    ]
    ways = [way for measured in gathered.of_kind("scaling") for way in _ways(measured)]
    study = list(_published())
    words = [
        "Speed-up is images/s over those of one worker; efficiency is speed-up over workers. In grey, what the "
        f"reference study has published for {published.hardware()['gpu']} GPUs, ResNet-50 and a batch of 128.",
        *(f"{text}." for text in compared(rows)),
    ]
    return Section(
        anchor="scaling",
        title="Scaling",
        words=words,
        figures=[
            *(figure for figures, _ in ways for figure in figures),
            _speed_up_figure(found, study, most),
            _efficiency_figure(found, study),
            *_node_figure(rows),
        ],
        tables=[*tables, *(table for _, table in ways)],
        reference=[_published_table()],
    )


def _ways(measured: ReportedExperiment) -> Iterator[tuple[list[Figure], cells.ReportTable]]:
    """The way from ideal to measured, of each mode's largest job, as `hora lab scaling` prints it; and how it changes
    with the workers."""
    rows = [
        row for row in measured.experiment.rows
        if row.get("waterfall") and row.get("state", "done") == "done" and row.get("strategy", "hora") == "hora"
    ]  # fmt: skip
    modes = list(dict.fromkeys(row.get("mode") for row in rows))
    for mode in modes:
        mine = [row for row in rows if row.get("mode") == mode]
        top = max(mine, key=lambda row: number(row, "workers"))
        name = f"{measured.folder.name}-{mode}"
        of = f", {mode} scaling" if len(modes) > 1 else ""
        known = [part for part in top["waterfall"] if math.isfinite(number(part, "share"))]
        total_ms = sum(number(part, "ms") for part in known)
        falls = [
            WaterfallBar(str(part["part"]), number(part, "share"), _part_text(part), note=part["title"])
            for part in known
        ]
        falls.append(
            WaterfallBar("a step", 1.0, _part_text({"ms": total_ms, "share": 1.0}), "with all of its parts", whole=True)
        )
        unknown = [str(part["title"]) for part in top["waterfall"] if part not in known]
        figures = [
            waterfall(
                f"way-{name}",
                f"From ideal to measured, {int(top['workers'])} workers{of}",
                falls,
                Axis("of a step", ".0%"),
                caption=f"Ideal is a step of computing alone. {measured.about}."
                + (f" Not measured: {', '.join(unknown)}." if unknown else ""),
            )
        ]
        if len(mine) > 1:
            parts = [
                ChartBar(
                    f"{int(row['workers'])} workers", str(part["part"]), number(part, "share"), note=str(part["title"])
                )
                for row in mine
                for part in row["waterfall"]
            ]
            figures.append(bars(f"ways-{name}", f"A step by workers{of}", parts, Axis("of a step", ".0%"), longest=1.0))
        lines = [
            {
                "part": part["title"],
                "time_ms": part.get("ms"),
                "of_a_step_share": part.get("share"),
            }
            for part in top["waterfall"]
        ]
        title = f"From ideal to measured: {measured.name}, {int(top['workers'])} workers{of}"
        note = f"Not measured: {', '.join(unknown)} (hora lab scaling --pauses)." if unknown else ""
        yield (
            figures,
            cells.table(
                [line for line in lines if line["time_ms"] is not None], title, note=note, about=measured.about
            ),
        )


def _part_text(part: Mapping[str, Any]) -> str:
    return f"{time_text(number(part, 'ms') / 1e3)}, {share_text(number(part, 'share'))}"


def _published() -> Iterator[SpeedUp]:
    """The study's, at the batch that all of its frameworks have."""
    for framework in published.FRAMEWORKS:
        found = [row for row in published.throughput(framework) if row.batch == 128]
        one = next((row.images_per_s for row in found if row.workers == 1), None)
        for row in found if one else ():
            yield SpeedUp(f"study: {_FRAMEWORKS[framework]}", row.workers, row.images_per_s / (one or 1))


_FRAMEWORKS = {"horovod+tensorflow": "Horovod, TensorFlow", "pytorch": "PyTorch", "horovod+pytorch": "Horovod, PyTorch"}


def _speed_up_figure(found: Sequence[SpeedUp], study: Sequence[SpeedUp], most: float) -> Figure:
    reach = max(4.0, 2 * most)
    points = [
        ChartPoint(each.series, each.workers, each.value, each.low, each.high, note=_believed(each)) for each in found
    ]
    points += [
        ChartPoint(each.series, each.workers, each.limit, style="dashed", note=_ALONE) for each in _limits(found)
    ]
    points += [ChartPoint(_IDEAL, at, at, style="dashed") for at in (1.0, reach)]
    points += [
        ChartPoint(each.series, each.workers, each.value, style="dashed") for each in study if each.workers <= reach
    ]
    return lines(
        "speed-up",
        "Speed-up",
        points,
        Axis("workers", "d", "linear", ticks=tuple(sorted({p.x for p in points})), nice=False),
        Axis("times one worker", "~r"),
        caption=f"Dashed in colour: without communication. {_INTERVALS}",
        quiet=[_IDEAL, *dict.fromkeys(each.series for each in study)],
    )


def _efficiency_figure(found: Sequence[SpeedUp], study: Sequence[SpeedUp]) -> Figure:
    points = [
        ChartPoint(each.series, n, each.value / n, each.low / n, each.high / n, note=_believed(each))
        for each in found
        for n in (each.workers,)
    ]
    points += [
        ChartPoint(each.series, each.workers, each.limit / each.workers, style="dashed", note=_ALONE)
        for each in _limits(found)
    ]
    points += [ChartPoint(each.series, each.workers, each.value / each.workers, style="dashed") for each in study]
    return lines(
        "efficiency",
        "Efficiency",
        points,
        by_count("workers", points),
        Axis("speed-up / workers", ".0%", zero=any(point.y < 0.5 for point in points)),
        caption="100 % is ideal. "
        + ("Do not trust what is above it. " if any(map(_believed, found)) else "")
        + "The study's runs go up to 32 GPUs on 8 hosts.",
        quiet=list(dict.fromkeys(each.series for each in study)),
    )


def _node_figure(rows: Sequence[Row]) -> list[Figure]:
    """Efficiency by node, where workers were on several."""
    points = [
        ChartPoint(name, number(row, "nodes"), value)
        for name, row in named(rows, leave_out=["global_batch"])
        if math.isfinite(value := number(row, "node_efficiency"))
    ]
    if len({point.x for point in points}) < 2:
        return []
    return [
        lines(
            "efficiency-by-node",
            "Efficiency by node",
            points,
            by_count("nodes", points),
            Axis("speed-up / nodes", ".0%", zero=any(point.y < 0.5 for point in points)),
            caption="Against one node full of workers. 100 % is ideal.",
        )
    ]


def _believed(each: SpeedUp) -> str:
    """A warning if it is more than ideal."""
    return "above ideal: do not trust it" if above_ideal(each.value / each.workers) else ""


def _limits(found: Sequence[SpeedUp]) -> list[SpeedUp]:
    """Those with a limit, of series that have one with several workers."""
    several = {each.series for each in found if each.workers > 1 and math.isfinite(each.limit)}
    return [each for each in found if each.series in several and math.isfinite(each.limit)]


def _published_table() -> cells.ReportTable:
    rows = []
    for framework in published.FRAMEWORKS:
        ones = {row.batch: row.images_per_s for row in published.throughput(framework) if row.workers == 1}
        for row in published.throughput(framework):
            times = row.images_per_s / ones[row.batch] if row.batch in ones else None
            rows.append(
                {
                    "framework": _FRAMEWORKS[framework], "table": row.table, "batch": row.batch, "workers": row.workers,
                    "images_per_s": row.images_per_s, "speed_up": times, "efficiency": times and times / row.workers,
                }
            )  # fmt: skip
    machine = published.hardware()
    return cells.table(
        rows,
        "The study's throughput, tables 1 to 9",
        note=f"{machine['gpu']}, {machine['gpus_per_node']} a host, {machine['interconnect']}.",
    )
