"""The table of a quality experiment: readable without colour, in a log, and within a hundred columns."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hora.lab.predict.forecast import duration_text
from hora.lab.throughput.show import WIDTH, blank, columns

__all__ = ["budgets", "percent", "print_findings", "table", "wrapped"]


def percent(value: float | None, digits: int = 2) -> str:
    """
    >>> percent(0.98714), percent(None)
    ('98.71', '')
    """
    return "" if value is None else f"{100 * value:.{digits}f}"


def _change(value: float | None, low: float | None, high: float | None) -> str:
    """
    >>> _change(-0.0213, -0.03, -0.01), _change(0.001, -0.01, 0.02), _change(0.001, None, None)
    ('-2.13 *', '+0.10  ', '+0.10 ?')
    """
    if value is None:
        return ""
    mark = "?" if low is None or high is None else "*" if low > 0 or high < 0 else " "
    return f"{100 * value:+.2f} {mark}"


def table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """One line a factor and number of workers."""
    made = blank(title)
    made.collapse_padding, made.pad_edge = True, False
    five = any(row["best_top5"] is not None for row in rows)
    columns(
        made, "factor", "workers", "batch", "peak lr", "n", "best top-1 %", "epoch", "final %",
        *(["top-5 %"] if five else []), "vs one", "time", left=("factor",),
    )  # fmt: skip
    for row in rows:
        begin = [
            row["factor"], f"{row['workers']}{'e' if row['emulated'] else ''}", f"{row['global_batch']:,}",
            f"{row['peak_lr']:.4g}", str(row["seeds"]),
        ]  # fmt: skip
        if not row["seeds"]:
            made.add_row(*begin, row["state"])
            continue
        around = "" if row["best_top1_spread"] is None else f" ± {percent(row['best_top1_spread'])}"
        made.add_row(
            *begin,
            f"{percent(row['best_top1'])}{around}",
            f"{row['best_epoch']:g}",
            percent(row["final_top1"]),
            *([percent(row["best_top5"])] if five else []),
            _change(row["vs_baseline"], row["vs_baseline_low"], row["vs_baseline_high"]),
            "" if row["time_s"] is None else duration_text(row["time_s"]),
        )
    legend = ["batch: of all workers", "* more than the seeds differ (95 %)"]
    if any(row["emulated"] for row in rows):
        legend.insert(0, "e: emulated, and so is the time")
    if any(row["vs_baseline"] is not None and row["vs_baseline_low"] is None for row in rows):
        legend[-1] = "? one seed cannot say"
    made.caption, made.caption_justify, made.caption_style = "; ".join(legend), "left", ""
    return made


def budgets(rows: Sequence[Mapping[str, Any]]) -> Table | None:
    """What is reached in a fixed time; None if that was not asked."""
    limits = [budget["minutes"] for budget in rows[0]["budgets"]] if rows else []
    if not limits:
        return None
    made = blank("In a fixed time: top-1 % (epochs)")
    columns(made, "factor", "workers", *(f"{limit:g} min" for limit in limits), "", left=("factor", ""))
    for row in rows:
        cells = [
            "not known" if budget["how"] == "not known"
            else "-" if budget["top1"] is None
            else f"{percent(budget['top1'])} ({budget['epochs']:g})"
            for budget in row["budgets"]
        ]  # fmt: skip
        hows = {budget["how"] for budget in row["budgets"]}
        made.add_row(row["factor"], str(row["workers"]), *cells, "predicted" if "predicted" in hows else "")
    return made


def print_findings(console: Console, findings: Sequence[Mapping[str, Any]]) -> None:
    """Each: what it is, in bold, and why below it."""
    for found in findings:
        wrapped(console, f"{found['title'][0].upper()}{found['title'][1:]}.", bold=True)
        for text in (found["what"], found["change"]):
            wrapped(console, f"{text.rstrip('.')}.", indent="  ")


def wrapped(console: Console, text: str, *, indent: str = "", bold: bool = False) -> None:
    """A paragraph, as wide as the tables at most."""
    width = min(WIDTH, max(40, console.width))
    lines = textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
    for line in lines:
        console.print(f"[bold]{escape(line)}[/bold]" if bold else escape(line), highlight=False, soft_wrap=True)
