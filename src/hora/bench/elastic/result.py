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
from hora.bench.elastic.job import Event, missing, run, version
from hora.bench.elastic.worker import COMMITS, COPIES, TURN_STEPS, ElasticBenchPlan
from hora.bench.plan import TRAININGS
from hora.errors import WorkersFailed
from hora.launch.planning.hosts import parse_hosts

__all__ = ["LABELS", "ElasticFigure", "ElasticResult", "Line", "lines", "measure", "print_result"]

LABELS = {"hora": "Hora", "torchrun": "torchrun", "torchft": "torchft"}
STATE_BYTES = 100 << 20
_KILL_EVERY_S, _GOODPUT_EVERY_S = 2.0, 10.0
_COST_ROUNDS = {"resnet50": 6, "mnist": 60}
_COSTS = {COMMITS: "commits at every step, without faults", COPIES: f"a copy every {TURN_STEPS} steps"}
_STOPS = 3


class ElasticFigure(msgspec.Struct, frozen=True, kw_only=True):
    """One contender's figure, of ``count`` observations: a median with the 99th percentile or with its standard error,
    or a single number."""

    value: float
    p99: float | None = None
    error: float | None = None
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
    for model in _COST_ROUNDS:
        progress(f"Hora: what commits cost without faults, {TRAININGS[model].title}")
        costs[model] = _costs(model, np, hosts)
        if len(costs[model]) < len(_COSTS):
            notes.append(f"what commits cost was not measured with {TRAININGS[model].title}: it took too long")
    found = [
        Line(name="kill to the survivors' next finished step", unit="s", figures=recovery),
        Line(name="the same if it is stopped (SIGSTOP)", unit="s", figures={"hora": _of(stopped)} if stopped else {}),
        Line(name="wait for a newcomer (Hora: with 100 MB of state)", unit="s", figures=joining),
        Line(name="committed steps lost", unit="", figures=lost),
        Line(name=f"goodput by live capacity, a kill every {_GOODPUT_EVERY_S:g} s", unit="%", figures=good),
        *(
            Line(name=f"{name}: {TRAININGS[model].title}", unit="%", figures={"hora": costs[model][variant]})
            for model in costs
            for variant, name in _COSTS.items()
            if variant in costs[model]
        ),
    ]
    versions = {"hora": __version__, "torch": str(torch.__version__)}
    versions |= {key: version(key) for key in LABELS if key != "hora" and key in recovery}
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


def _costs(model: str, np: int, hosts: str | None) -> dict[int, ElasticFigure]:
    """Percent that training takes longer with commits, by variant. Of two workers, on two hosts if there are."""
    if hosts is not None and len(listed := parse_hosts(hosts)) > 1:
        hosts = ",".join(f"{host.name}:1" for host in listed[:2])
    plan = ElasticBenchPlan(np=min(np, 2), model=model, rounds=_COST_ROUNDS[model])
    awaited = plan.np * plan.rounds * (1 + len(_COSTS))
    events = run(
        "costs", plan, lambda seen: sum(e.kind == "cost" for e in seen) >= awaited, hosts=hosts, limit_s=30.0
    )  # fewer rounds if it is slow
    found = {variant: figures.costs(events, variant) for variant in _COSTS}
    return {
        variant: ElasticFigure(
            value=statistics.median(percent), error=figures.standard_error(percent), count=len(percent)
        )
        for variant, percent in found.items()
        if percent
    }


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
    if figure.error is not None:
        return f"{figure.value:.1f} ± {figure.error:.1f} %"
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
