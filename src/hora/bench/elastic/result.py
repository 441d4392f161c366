"""The outcome of `hora bench elastic`: measured, typed, and shown as a table, on a terminal or in a page."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import msgspec
from rich.console import Console
from rich.table import Table

from hora import __version__
from hora.bench.drive import disturbance, machine
from hora.bench.elastic import figures
from hora.bench.elastic.job import Event, missing, run
from hora.bench.elastic.worker import ElasticBenchPlan
from hora.bench.plan import TRAININGS
from hora.errors import WorkersFailed

__all__ = ["LABELS", "ElasticFigure", "ElasticResult", "Line", "lines", "measure", "print_result"]

LABELS = {"hora": "Hora", "torchrun": "torchrun", "torchft": "torchft"}
STATE_BYTES = 100 << 20
_KILL_EVERY_S, _GOODPUT_EVERY_S = 2.0, 10.0
_COST_STEPS = {"resnet50": 40, "mnist": 150}
_STOPS = 3


class ElasticFigure(msgspec.Struct, frozen=True, kw_only=True):
    """One contender's figure: a median with the 99th percentile, or a single number, of ``count`` observations."""

    value: float
    p99: float | None = None
    count: int = 1


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table. ``unit`` is s, % or empty."""

    name: str
    unit: str
    figures: dict[str, ElasticFigure]


class ElasticResult(msgspec.Struct, kw_only=True):
    """The result, with all that is needed to repeat it."""

    np: int
    command: str
    lines: list[Line]
    machine: dict[str, str | int]
    versions: dict[str, str]
    notes: list[str] = []
    started: str = ""
    hosts: str = ""
    bench: str = "elastic"
    schema: int = 1


def measure(
    np: int, contenders: Sequence[str], kills: int, hosts: str | None, command: str, progress: Callable[[str], None]
) -> ElasticResult:
    """Measure each contender in turn; a note lists what cannot be measured here."""
    import torch

    started, notes = datetime.now(UTC).isoformat(timespec="seconds"), disturbance()
    recovery: dict[str, ElasticFigure] = {}
    joining: dict[str, ElasticFigure] = {}
    lost: dict[str, ElasticFigure] = {}
    good: dict[str, ElasticFigure] = {}
    for contender in contenders:
        label = LABELS[contender]
        if reason := missing(contender, hosts):
            notes.append(f"{label} was not measured: {reason}")
            continue
        wanted = kills if contender == "hora" else max(1, kills // 4)
        plan = ElasticBenchPlan(np=np, every_s=_KILL_EVERY_S, state_bytes=STATE_BYTES if contender == "hora" else 0)
        try:
            progress(f"{label}: {wanted} kills")
            events = run(contender, plan, _recovered(wanted), hosts=hosts, limit_s=30.0 * wanted)
            _summarise(contender, events, recovery, joining, lost)
            progress(f"{label}: a kill every {_GOODPUT_EVERY_S:g} s")
            plan = msgspec.structs.replace(plan, every_s=_GOODPUT_EVERY_S, state_bytes=0)
            events = run(contender, plan, _recovered(max(1, wanted // 4)), hosts=hosts, limit_s=60.0)
            if any(e.kind == "kill" for e in events):
                kills_there = sum(e.kind == "kill" for e in events)
                good[contender] = ElasticFigure(value=100 * figures.goodput(events), count=kills_there)
        except WorkersFailed as error:
            if contender == "hora":
                raise
            notes.append(f"{label} failed: {str(error).splitlines()[0]}")
    progress(f"Hora: {_STOPS} workers that are stopped")
    plan = ElasticBenchPlan(np=np, every_s=_KILL_EVERY_S, stop=True)
    stopped = figures.recoveries(run("hora", plan, _recovered(_STOPS), hosts=hosts, limit_s=30.0 * _STOPS))
    costs = {}
    for model in _COST_STEPS:
        progress(f"Hora: what commits cost without faults, {TRAININGS[model].title}")
        costs[model] = {"hora": _cost(model, np, hosts)}
    found = [
        Line(name="kill to the survivors' next finished step", unit="s", figures=recovery),
        Line(name="the same if it is stopped (SIGSTOP)", unit="s", figures={"hora": _of(stopped)} if stopped else {}),
        Line(name="wait for a newcomer (Hora: with 100 MB of state)", unit="s", figures=joining),
        Line(name="committed steps lost", unit="", figures=lost),
        Line(name=f"goodput by live capacity, a kill every {_GOODPUT_EVERY_S:g} s", unit="%", figures=good),
        *(
            Line(name=f"commits at every step, without faults: {TRAININGS[model].title}", unit="%", figures=cost)
            for model, cost in costs.items()
        ),
    ]
    versions = {"hora": __version__, "torch": str(torch.__version__)}
    return ElasticResult(
        np=np, command=command, lines=found, machine=machine(), versions=versions, notes=notes, started=started,
        hosts=hosts or "",
    )  # fmt: skip


def _recovered(kills: int) -> Callable[[Sequence[Event]], bool]:
    return lambda events: sum(e.kind == "kill" for e in events) >= kills and len(figures.recoveries(events)) >= kills


def _summarise(
    contender: str,
    events: Sequence[Event],
    recovery: dict[str, ElasticFigure],
    joining: dict[str, ElasticFigure],
    lost: dict[str, ElasticFigure],
) -> None:
    for target, seconds in ((recovery, figures.recoveries(events)), (joining, figures.joins(events))):
        if seconds:
            target[contender] = _of(seconds)
    lost[contender] = ElasticFigure(value=figures.lost_steps(events), count=sum(e.kind == "kill" for e in events))


def _of(seconds: Sequence[float]) -> ElasticFigure:
    ordered = sorted(seconds)
    p99 = ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]
    return ElasticFigure(value=statistics.median(ordered), p99=p99, count=len(ordered))


def _cost(model: str, np: int, hosts: str | None, rounds: int = 3) -> ElasticFigure:
    """Percent that elastic training with a commit a step takes longer than training that is not elastic, by turns."""
    added = []
    for _ in range(rounds):
        medians = []
        for commit in (False, True):
            plan = ElasticBenchPlan(np=min(np, 2), model=model, commit=commit, steps=_COST_STEPS[model])
            events = run("hora", plan, _all_finished(plan), hosts=hosts, limit_s=120.0)
            medians.append(figures.step_s([e for e in events if e.step > plan.steps // 5]))
        added.append(100 * (medians[1] / medians[0] - 1) if medians[0] else 0.0)
    return ElasticFigure(value=statistics.median(added), count=rounds)


def _all_finished(plan: ElasticBenchPlan) -> Callable[[Sequence[Event]], bool]:
    return lambda events: sum(e.kind == "step" and e.step >= plan.steps for e in events) >= plan.np


def lines(result: ElasticResult) -> list[list[str]]:
    """The table as text: headings, then a line for each figure."""
    keys = [key for key in LABELS if any(key in line.figures for line in result.lines)]
    shown = [["", *(LABELS[key] for key in keys)]]
    for line in result.lines:
        shown.append([line.name, *(_text(line.figures.get(key), line.unit) for key in keys)])
    return shown


def _text(figure: ElasticFigure | None, unit: str) -> str:
    """
    >>> _text(ElasticFigure(value=0.0312, p99=0.0471, count=12), "s"), _text(ElasticFigure(value=96.44), "%")
    ('31 ms / 47 ms (12)', '96.4 %')
    """
    if figure is None:
        return ""
    if unit == "s":
        tail = f" / {_seconds(figure.p99)}" if figure.p99 is not None else ""
        return f"{_seconds(figure.value)}{tail} ({figure.count})"
    return f"{figure.value:.1f} %" if unit == "%" else f"{figure.value:g}"


def _seconds(value: float) -> str:
    return f"{1e3 * value:.0f} ms" if value < 1 else f"{value:.1f} s"


def print_result(result: ElasticResult, console: Console) -> None:
    headings, *rows = lines(result)
    where = f" on {result.hosts}" if result.hosts else ""
    table = Table(title=f"Elastic jobs: {result.np} workers{where}; median / 99th percentile (how many)")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for note in result.notes:
        console.print(f"note: {note}", highlight=False)
