"""The tables of a quality experiment."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from hora.lab import show
from hora.lab.columns import value_text
from hora.lab.show import Field, Row, capital, titled
from hora.terminal import caption

__all__ = ["budgets", "print_findings", "print_results", "table", "top1_text", "workers_text"]


def print_results(out: Console, rows: Sequence[Row], findings: Sequence[Row], title: str) -> None:
    """All there is to show of an experiment, also of one from its record: the tables and the findings."""
    out.print(show.fitted(table(rows, title), out, ("time", "epoch", "top-5", "final", "n")))
    if (made := budgets(rows)) is not None:
        out.print(made)
    out.print()
    print_findings(out, findings)
    out.print()


def top1_text(row: Row) -> str:
    """The best top-1, with what the seeds differ by."""
    spread = row["best_top1_spread"]
    return value_text("top1", row["best_top1"]) + ("" if spread is None else f" ± {100 * spread:.2f}")


def workers_text(row: Row) -> str:
    """
    >>> workers_text({"workers": 32, "emulated": True})
    '32e'
    """
    return f"{row['workers']}{'e' if row['emulated'] else ''}"


def _change(value: float | None, low: float | None, high: float | None) -> str:
    """
    >>> _change(-0.0213, -0.03, -0.01), _change(0.001, -0.01, 0.02), _change(0.001, None, None)
    ('-2.13 *', '+0.10  ', '+0.10 ?')
    """
    if value is None:
        return ""
    mark = "?" if low is None or high is None else "*" if low > 0 or high < 0 else " "
    return f"{100 * value:+.2f} {mark}"


def table(rows: Sequence[Row], title: str) -> Table:
    """One line a factor and number of workers."""
    five = any(row["best_top5"] is not None for row in rows)
    fields = [
        Field("factor", left=True),
        Field("workers", text=workers_text),
        Field("global_batch"),
        Field("peak_lr"),
        Field("seeds"),
        Field("best_top1", text=top1_text),
        Field("best_epoch"),
        Field("final_top1"),
        *([Field("best_top5")] if five else []),
        Field("vs_baseline", text=lambda row: _change(*(row[f"vs_baseline{end}"] for end in ("", "_low", "_high")))),
        Field("time_s"),
    ]
    made = show.table(title, rows, fields, unless_done=lambda row: "" if row["seeds"] else str(row["state"]), begin=5)
    legend = ["batch: of all workers", "* significant (95 %)"]
    if any(row["emulated"] for row in rows):
        legend.insert(0, "e: emulated workers, time of the emulation")
    if any(row["vs_baseline"] is not None and row["vs_baseline_low"] is None for row in rows):
        legend[-1] = "? only one seed"
    return caption(made, "; ".join(legend))


def budgets(rows: Sequence[Row]) -> Table | None:
    """What is reached in a fixed time; None if that was not asked."""
    limits = [budget["minutes"] for budget in rows[0]["budgets"]] if rows else []
    if not limits:
        return None
    fields = [
        Field("factor", left=True),
        Field("workers"),
        *(_budget(number, f"{limit:g} min") for number, limit in enumerate(limits)),
        Field("how", "", _how, left=True),
    ]
    return show.table("In a fixed time: top-1 (epochs)", rows, fields)


def _budget(number: int, heading: str) -> Field:
    def text(row: Row) -> str:
        budget = row["budgets"][number]
        if budget["how"] == "not known":
            return "not known"
        return "-" if budget["top1"] is None else f"{value_text('top1', budget['top1'])} ({budget['epochs']:g})"

    return Field(heading, text=text)


def _how(row: Row) -> str:
    return "predicted" if any(budget["how"] == "predicted" for budget in row["budgets"]) else ""


def print_findings(console: Console, findings: Sequence[Row]) -> None:
    """Each: what it is, in bold, and why below it."""
    for found in findings:
        titled(console, f"{capital(found['title'])}.", found["what"], found["change"])
