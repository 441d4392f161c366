"""The tables and the words of a scaling experiment: readable without colour, in a log, and within a hundred columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from hora.lab import show
from hora.lab.columns import value_text
from hora.lab.show import WIDTH, Field, Row, gain_text, titled
from hora.lab.throughput.show import not_done, several
from hora.text import link_text, plural, share_text, time_text

__all__ = ["headlines", "print_findings", "print_results", "print_waterfall", "table", "waterfall_lines"]

_EXPENDABLE = ("data", "ideal", "limit", "in step", "90 %")  # the first to go if there is no room


def print_results(out: Console, rows: Sequence[Row], findings: Sequence[Row], workload: str) -> None:
    """All there is to show of an experiment, also of one from its record: a table, the waterfall and the findings of
    each mode."""
    for mode in dict.fromkeys(row["mode"] for row in rows):
        mine = [row for row in rows if row["mode"] == mode]
        title = f"{workload}, {mode} scaling, {plural(mine[0]['threads'], 'thread')} a worker"
        out.print(show.fitted(table(mine, title), out, _EXPENDABLE))
        for line in headlines(mine):
            out.print(line, highlight=False, markup=False, soft_wrap=True)
        if told := [row for row in mine if row.get("strategy", "hora") == "hora"]:
            print_waterfall(out, told[-1])
        print_findings(out, [finding for finding in findings if finding["mode"] == mode])
        out.print()


def table(rows: Sequence[Row], title: str) -> Table:
    """One line a worker count."""
    contenders = [Field("strategy", left=True)] if len({row.get("strategy") for row in rows}) > 1 else []
    nodes = [Field("node_efficiency", "by node")] if any(row.get("nodes", 1) > 1 for row in rows) else []
    fields = [
        Field("workers"),
        *contenders,
        Field("batch"),
        Field("images_per_s"),
        Field("90 %", text=lambda row: show.span_text(row["low"], row["high"])),
        several("ideal_images_per_s"),
        several("limit_images_per_s"),
        several("in_step_images_per_s"),
        Field("speed_up"),
        Field("efficiency", text=_efficiency),
        Field("90 %", text=_interval),
        *nodes,
        Field("data_share", text=_waiting),
    ]
    return show.table(title, rows, fields, unless_done=not_done, begin=2 + len(contenders))


def _efficiency(row: Row) -> str:
    return value_text("efficiency", row["efficiency"]) + (" (!)" if row.get("above_ideal") else "")


def _interval(row: Row) -> str:
    low, high = row["efficiency_low"], row["efficiency_high"]
    return f"{100 * low:.0f}-{100 * high:.0f} %" if row["workers"] > 1 and low is not None else ""


def _waiting(row: Row) -> str:
    """The part of a step that is waiting for data."""
    return f"{100 * row['data_ms'] / row['step_ms']:.0f} %" if row["data_ms"] is not None and row["step_ms"] else ""


def headlines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Warnings about rows of one mode: impossible results, and those worse than one worker.

    >>> headlines([{"workers": 2, "above_ideal": True, "efficiency": 1.42, "slower_than_one": False, "link": None}])
    ['(!) 142 % of ideal with 2 workers is impossible; do not trust it.']
    """
    said = []
    for row in rows:
        workers = f"{row['workers']} workers"
        if row.get("above_ideal"):
            said.append(f"(!) {share_text(row['efficiency'])} of ideal with {workers} is impossible; do not trust it.")
        if row.get("slower_than_one"):
            said.append(f"{workers} are slower than one worker: {row['speed_up']:.2f} times its images/s.")
        if link := row.get("link"):
            best = link["faster"][-1]
            said.append(
                f"The link with {workers}: {link_text(link['mbit_per_s'])}, {share_text(link['share'])} of a step. At "
                f"{link_text(best['mbit_per_s'])} they would have {best['speed_up']:.2f} times the images/s of one."
            )
    return said


def print_waterfall(console: Console, row: Mapping[str, Any]) -> None:
    """The way from ideal to measured, of the largest job: a bar for each part, each beginning where the one before it
    ends. Without colour it reads the same."""
    parts = row.get("waterfall")
    if not parts:
        return
    console.print(f"\n[bold]From ideal to measured, {row['workers']} workers[/bold]", highlight=False)
    for line in waterfall_lines(parts, min(WIDTH, max(60, console.width))):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def waterfall_lines(parts: Sequence[Mapping[str, Any]], width: int = WIDTH) -> list[str]:
    """
    >>> made = [{"part": "computing", "title": "computing", "ms": 75.0, "share": 0.75},
    ...         {"part": "waiting", "title": "waiting", "ms": 25.0, "share": 0.25},
    ...         {"part": "pauses", "title": "pauses", "ms": None, "share": None}]
    >>> for line in waterfall_lines(made, 50): print(line.rstrip())
      computing 75.0 ms  75 % ████████████████
      waiting   25.0 ms  25 %                 ██████
      pauses     not measured
      a step     100 ms 100 % ██████████████████████
    """
    known = [part for part in parts if part["share"] is not None]
    total_ms = sum(part["ms"] for part in known)
    titles = max(len(part["title"]) for part in parts)
    figures = max(len(_ms(ms)) for ms in [total_ms, *(part["ms"] for part in known)])
    space = max(10, width - titles - figures - 12)
    lines, before = [], 0.0
    for part in [*parts, {"title": "a step", "ms": total_ms, "share": 1.0, "part": ""}]:
        if part["share"] is None:
            lines.append(f"  {part['title']:{titles}}  not measured")
            continue
        begin = 0.0 if not part["part"] else before
        before += part["share"]
        start, end = round(begin * space), round((begin + part["share"]) * space)
        bar = " " * start + "█" * (end - start)
        if end == start and part["share"] > 0:
            bar = " " * min(start, space - 1) + "▏"
        percent = f"{100 * part['share']:3.0f} %"
        lines.append(f"  {part['title']:{titles}} {_ms(part['ms']):>{figures}} {percent} {bar}".rstrip())
    return lines


def _ms(value: float) -> str:
    return time_text(value / 1e3) if value else "0 ms"


def print_findings(console: Console, found: Sequence[Row]) -> None:
    """The bottleneck and what else is worth a change, in words; of one mode."""
    for number, finding in enumerate(found):
        takes = f"It takes {share_text(finding['share'])} of a step"
        if f"{share_text(finding['gain'])} less" not in finding["change"]:  # else that has been said
            takes += f"; {gain_text(finding)}"
        console.print()
        titled(
            console, f"{'Also' if number else 'Bottleneck'}: {finding['title']}.", finding["what"],
            f"Change: {finding['change']}", *([takes] if finding["kind"] not in ("compute", "above ideal") else []),
        )  # fmt: skip
