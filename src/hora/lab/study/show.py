"""The tables of the miniature, each row beside the study's own; the questions and their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from hora.lab.quality.show import percent, wrapped
from hora.lab.throughput.show import blank, columns, count_text

__all__ = ["print_answers", "quality_table", "speed_table"]

_SHORT = {"horovod+tensorflow": "Horovod+TF", "pytorch": "PyTorch", "horovod+pytorch": "Horovod+PT"}


def speed_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Experiments 1 to 3."""
    made = _blank("Experiments 1 to 3: throughput, and the study's tables 1 to 9")
    columns(
        made, "exp", "here", "workers", "batch", "images/s", "steady", "speed-up", "study's", "images/s", "speed-up",
        left=("here", "study's"),
    )  # fmt: skip
    for row in rows:
        if row["what"] != "throughput" or row["state"] == "not run":
            continue
        speed = count_text(row["images_per_s"])
        if row["low"] is not None:
            speed = f"~{speed}"
        elif not speed:
            speed = row["state"]
        made.add_row(
            str(row["experiment"]), row["here"], str(row["workers"]), str(row["batch"]), speed,
            count_text(row["steady_images_per_s"]), _times(row["speed_up"]), _SHORT[row["framework"]],
            count_text(row["published_images_per_s"]), _times(row["published_speed_up"]),
        )  # fmt: skip
    made.caption, made.caption_justify, made.caption_style = "~ predicted; --json has the interval", "left", ""
    return made


def quality_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Experiments 4 to 9."""
    made = _blank("Experiments 4 to 9: quality, and the study's tables 10 to 15")
    columns(
        made, "exp", "factor", "workers", "peak lr", "top-1 %", "epoch", "vs base", "study's lr", "top-1 %", "vs base",
        "top-5 %", "min", left=("factor",),
    )  # fmt: skip
    for row in rows:
        if row["what"] != "quality":
            continue
        around = "" if row["best_top1_spread"] is None else f" ± {percent(row['best_top1_spread'])}"
        base = row["factor"] == "baseline"
        made.add_row(
            str(row["experiment"]),
            row["factor"],
            f"{row['workers']}{'e' if row['emulated'] else ''}",
            f"{row['peak_lr']:.4g}",
            f"{percent(row['best_top1'])}{around}" if row["seeds"] else row["state"],
            "" if row["best_epoch"] is None else f"{row['best_epoch']:g}",
            "" if base else _points(_against_base(row, rows)),
            "" if row["published_lr"] is None else f"{row['published_lr']:g}",
            percent(row["published_top1"]),
            "" if base else _points(row["published_vs_baseline"]),
            percent(row["published_top5"]),
            "" if row["published_minutes"] is None else f"{row['published_minutes']:,}",
        )
    made.caption, made.caption_justify, made.caption_style = "e: emulated", "left", ""
    return made


def _against_base(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> float | None:
    base = next((each for each in rows if each.get("factor") == "baseline"), None)
    if base is None or base["best_top1"] is None or row["best_top1"] is None:
        return None
    return float(row["best_top1"] - base["best_top1"])


def print_answers(console: Console, findings: Sequence[Mapping[str, Any]]) -> None:
    """The three questions."""
    for number, found in enumerate(findings, start=1):
        wrapped(console, f"Question {number}. {found['question']}", bold=True)
        answer = f"{found['title'][0].upper()}{found['title'][1:]}"
        for text in (answer, found["what"], found["change"]):
            wrapped(console, f"{text.rstrip('.')}.", indent="  ")


def _blank(title: str) -> Table:
    made = blank(title)
    made.collapse_padding, made.pad_edge = True, False
    return made


def _times(value: float | None) -> str:
    """
    >>> _times(1.8349), _times(None)
    ('1.83x', '')
    """
    return "" if value is None else f"{value:.2f}x" if value < 9.995 else f"{value:.1f}x"


def _points(value: float | None) -> str:
    """
    >>> _points(-0.0195), _points(None)
    ('-1.95', '')
    """
    return "" if value is None else f"{100 * value:+.2f}"
