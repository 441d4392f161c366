"""The tables of the miniature, each row beside the study's own; the questions and their answers."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from hora.lab import show
from hora.lab.columns import value_text
from hora.lab.quality.show import top1_text, workers_text
from hora.lab.show import Field, Row, capital, titled
from hora.terminal import caption

__all__ = ["print_answers", "quality_table", "speed_table"]

_SHORT = {"horovod+tensorflow": "Horovod+TF", "pytorch": "PyTorch", "horovod+pytorch": "Horovod+PT"}


def speed_table(rows: Sequence[Row]) -> Table:
    """Experiments 1 to 3."""
    fields = [
        Field("experiment"),
        Field("here", left=True),
        Field("workers"),
        Field("batch"),
        Field("images_per_s", text=_speed),
        Field("steady_images_per_s"),
        Field("speed_up"),
        Field("framework", "study's", lambda row: _SHORT[row["framework"]], left=True),
        Field("published_images_per_s"),
        Field("published_speed_up"),
    ]
    ran = [row for row in rows if row["what"] == "throughput" and row["state"] != "not run"]
    made = show.table("Experiments 1 to 3: throughput, and the study's tables 1 to 9", ran, fields)
    return caption(made, "~ predicted; --json has the interval")


def _speed(row: Row) -> str:
    text = value_text("images_per_s", row["images_per_s"])
    return f"~{text}" if row["low"] is not None else text or str(row["state"])


def quality_table(rows: Sequence[Row]) -> Table:
    """Experiments 4 to 9."""
    fields = [
        Field("experiment"),
        Field("factor", left=True),
        Field("workers", text=workers_text),
        Field("peak_lr"),
        Field("top1", text=lambda row: top1_text(row) if row["seeds"] else str(row["state"])),
        Field("best_epoch"),
        Field("vs_baseline", "vs base", lambda row: value_text("vs_baseline", _against_base(row, rows))),
        Field("published_lr"),
        Field("published_top1"),
        Field("published_vs_baseline", text=lambda row: "" if _is_base(row) else _published_change(row)),
        Field("published_top5"),
        Field("published_minutes"),
    ]
    of_quality = [row for row in rows if row["what"] == "quality"]
    made = show.table("Experiments 4 to 9: quality, and the study's tables 10 to 15", of_quality, fields)
    return caption(made, "e: emulated")


def _is_base(row: Row) -> bool:
    return bool(row["factor"] == "baseline")


def _published_change(row: Row) -> str:
    return value_text("published_vs_baseline", row["published_vs_baseline"])


def _against_base(row: Row, rows: Sequence[Row]) -> float | None:
    base = next((each for each in rows if each.get("factor") == "baseline"), None)
    if _is_base(row) or base is None or base["best_top1"] is None or row["best_top1"] is None:
        return None
    return float(row["best_top1"] - base["best_top1"])


def print_answers(console: Console, findings: Sequence[Row]) -> None:
    """The three questions."""
    for number, found in enumerate(findings, start=1):
        question = f"Question {number}. {found['question']}"
        titled(console, question, capital(found["title"]), found["what"], found["change"])
