"""The section on 3DGAN: the losses of both networks by epoch, and the errors that a result is judged by, moments among
them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hora.lab.report import cells, showers
from hora.lab.report.charts import EPOCHS, Axis, ChartPoint, Figure, Style, lines
from hora.lab.report.gather import ReportedRun, ReportInput
from hora.lab.report.label import about
from hora.lab.report.learning import run_names
from hora.lab.report.section import Section
from hora.lab.report.speed import number

__all__ = ["WORKLOAD", "gan3d"]

WORKLOAD = "gan3d"
_MOST = 4  # runs in a plot
_LOSSES = {"generator": "generator_loss", "discriminator": "discriminator_loss"}
_ERRORS = {"result": "val_analysis", "moments": "val_moment_error", "profile": "val_profile_error"}
_COLUMNS = {"": "loss", "generation": "real or generated", "auxiliary": "energy", "ecal": "sum of cells"}


def gan3d(gathered: ReportInput) -> Section | None:
    """Losses, result and moments of the runs of 3DGAN, experiments' too."""
    runs = [ran for ran in gathered.all_runs() if ran.file and ran.file.workload == WORKLOAD and ran.epochs]
    if not runs:
        return None
    names, shown = run_names(runs), runs[:_MOST]
    of = dict(zip(names, runs, strict=True))
    figures = [figure for figure in (_losses(names, shown), _result(names, shown)) if figure is not None]
    looked = [(name, ran, shapes) for name, ran in zip(names, shown, strict=False) if (shapes := showers.read(ran))]
    looked = [each for each in looked if each[1] in gathered.runs] or looked  # trials of a sweep only if alone
    for place, (name, _, shapes) in enumerate(looked):
        figures += showers.figures(name if len(looked) > 1 else "", place, shapes)
    judged = any(math.isfinite(number(ran.epochs[-1], "val_analysis")) for ran in runs)
    words = [
        "The generator makes showers, and the discriminator tells them from simulated ones; less is better throughout."
        + (
            " The result is the error of moments plus that of the profile: mean relative errors of generated showers "
            "against real ones of the same energy."
            if judged
            else " Train with --analysis for the result: the errors of moments and profile."
        )
    ]
    more = [f"The plots have the first {_MOST} of {len(runs)} runs."] if len(runs) > _MOST else []
    tables = [cells.table([_row(name, ran) for name, ran in of.items()], "Result after the last epoch")]
    tables += [
        cells.table(list(_last(ran)), f"Losses after the last epoch: {name}", about=about(ran.file))
        for name, ran in list(of.items())[:_MOST]
        if ran.file
    ]
    tables += [
        showers.table(name if len(looked) > 1 else "", shapes, about(ran.file))
        for name, ran, shapes in looked
        if ran.file
    ]
    return Section(anchor="gan3d", title="3DGAN", words=words, figures=figures, tables=tables, notes=more)


def _at(line: Mapping[str, Any]) -> float:
    return number(line, "epoch") + 1


def _named(run: str, series: str, runs: Sequence[ReportedRun]) -> str:
    return f"{run}: {series}" if len(runs) > 1 else series


def _by_epoch(name: str, title: str, points: Sequence[ChartPoint], value: str, caption: str) -> Figure | None:
    """A plot over epochs; logarithmic if the values span so much that small ones would lie on the axis."""
    if not points:
        return None
    values = [point.y for point in points]
    log = min(values) > 0 and max(values) > 30 * min(values)
    axis = Axis(value, "~s", "log" if log else "linear")
    return lines(name, title, points, EPOCHS, axis, caption=caption + (" The axis is logarithmic." if log else ""))


def _losses(names: Sequence[str], runs: Sequence[ReportedRun]) -> Figure | None:
    styles: tuple[tuple[str, Style, str], ...] = (("val_", "solid", "test"), ("", "dashed", "training"))
    points = [
        ChartPoint(_named(run, network, runs), _at(line), value, style=style, note=note)
        for run, ran in zip(names, runs, strict=False)
        for network, key in _LOSSES.items()
        for prefix, style, note in styles
        for line in ran.epochs
        if math.isfinite(value := number(line, prefix + key))
    ]
    return _by_epoch("gan3d-losses", "Losses", points, "loss", "Solid: test, dashed: training.")


def _result(names: Sequence[str], runs: Sequence[ReportedRun]) -> Figure | None:
    points = [
        ChartPoint(_named(run, name, runs), _at(line), value)
        for run, ran in zip(names, runs, strict=False)
        for name, key in _ERRORS.items()
        for line in ran.epochs
        if math.isfinite(value := number(line, key))
    ]
    title, caption = "Result, moments and profile", "Of generated showers against real ones."
    return _by_epoch("gan3d-result", title, points, "mean relative error", caption)


def _row(name: str, ran: ReportedRun) -> dict[str, Any]:
    assert ran.file is not None
    last = ran.epochs[-1]
    found = {series: last.get(key) for series, key in _ERRORS.items()}
    best = [number(line, "val_analysis") for line in ran.epochs if math.isfinite(number(line, "val_analysis"))]
    return {
        "run": name, "workers": ran.file.workers, "batch": ran.file.options.get("batch"), "epochs": len(ran.epochs),
        **found, "best result": min(best) if best else None, "generator loss": last.get("val_generator_loss"),
        "discriminator loss": last.get("val_discriminator_loss"),
        "images_per_s": ran.file.result.get("images_per_s") or None,  # 0 if there was one step
    }  # fmt: skip


def _last(ran: ReportedRun) -> Iterator[dict[str, Any]]:
    """The table that 3DGAN prints."""
    last = ran.epochs[-1]
    for network in _LOSSES:
        for prefix, part in (("", "training"), ("val_", "test")):
            row = {
                title: last.get(f"{prefix}{network}_{f'{column}_' if column else ''}loss")
                for column, title in _COLUMNS.items()
            }
            if any(value is not None for value in row.values()):
                yield {"network": network, "part": part, **row}
