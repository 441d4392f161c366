"""Rows of plain values as a table that people read: headings with units, numbers with as many digits as they are worth,
an interval beside its figure, and with every cell the value that it is sorted by.

What a column means is told by its name: ``images_per_s`` has a unit, ``efficiency`` is a share, ``memory_mb`` a size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from hora.lab.scaling.waterfall import above_ideal
from hora.lab.timeline.words import share_text, size_text

__all__ = ["Cell", "Column", "Table", "heading", "number_text", "table", "text_of"]

_SHARES = {"efficiency", "accuracy", "top1", "top5", "share", "error"}
_SHARE_ENDS = ("_share", " of the limit", "_efficiency", "accuracy", "_top1", "_top5", "_error")
_TIMES = {"speedup", "speed_up"}
_WHOLE = {
    "workers", "batch", "global_batch", "threads", "seed", "seeds", "steps", "epoch", "epochs", "best_epoch", "hosts",
    "gpus", "runs", "rank", "table", "processes", "experiment", "emulated_workers",
}  # fmt: skip
_ALWAYS = {
    "workers",
    "batch",
    "images_per_s",
    "factor",
    "run",
    "rank",
    "what",
    "plan",
    "framework",
}  # shown though alike
_WORDS = {
    "images_per_s": "images/s", "low": "from", "high": "to", "lr": "learning rate", "peak_lr": "peak rate",
    "speedup": "speed-up", "cpu_share": "CPU", "gpu_share": "GPU", "memory_bytes": "memory", "val": "validation",
    "top1": "top-1", "top5": "top-5", "images_per_s_study": "images/s, study's formula",
    "data_ms": "wait for data (ms)",
    "speed_up": "speed-up", "share_of_limit": "of the limit", "limit_efficiency": "efficiency of the limit",
    "vs_baseline": "against one worker (points)", "warmup": "warm-up", "val_accuracy": "validation accuracy",
    "val_loss": "validation loss", "best_val_accuracy": "best", "seconds": "time (s)",
}  # fmt: skip
_UNITS = {"s": "s", "ms": "ms", "us": "µs", "min": "min", "minutes": "min", "percent": "%", "mb": "MB", "gb": "GB"}


class Cell(NamedTuple):
    """``sort`` is a number or words as text, "" if there is nothing; ``interval`` says how sure the figure is."""

    text: str
    sort: str
    interval: str = ""


class Column(NamedTuple):
    """A heading, and whether it is of numbers."""

    title: str
    number: bool


class Table(NamedTuple):
    """What the page shows. ``about`` says of which experiment; ``marks`` what is to be known of a row: "predicted" or
    "above ideal", else ""."""

    title: str
    columns: list[Column]
    rows: list[list[Cell]]
    note: str = ""
    about: str = ""
    marks: list[str] = []  # noqa: RUF012 - never changed


def heading(name: str) -> str:
    """A column's name in words.

    >>> [heading(name) for name in ("images_per_s", "limit_images_per_s", "first_batch_s", "memory_bytes", "val_top1")]
    ['images/s', 'limit images/s', 'first batch (s)', 'memory', 'validation top-1']
    """
    if name in _WORDS or " " in name:
        return _WORDS.get(name, name)
    if name.endswith("images_per_s"):
        return f"{heading(name.removesuffix('_images_per_s'))} images/s"
    words = name.replace("speed_up", "speed-up").split("_")
    unit = ""
    if len(words) > 1 and words[-1] in _UNITS:
        unit = f" ({_UNITS[words.pop()]})"
    elif len(words) > 1 and words[-1] in ("bytes", "share"):
        words.pop()
    return " ".join(_WORDS.get(word, word) for word in words) + unit


def number_text(value: float) -> str:
    """Three digits, or all that stand before the point.

    >>> [number_text(value) for value in (4812.3, 98.76, 1.2345, 0.0123456, 1e-7, 0, 12, math.nan)]
    ['4,812', '98.8', '1.23', '0.0123', '1e-07', '0', '12', 'unknown']
    """
    if not math.isfinite(value):
        return "unknown"
    if value == 0 or isinstance(value, int):
        return f"{value:,.0f}"
    size = abs(value)
    if size >= 99.95:
        return f"{value:,.0f}"
    if size < 1e-4:
        return f"{value:.3g}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(size)))}f}"


def text_of(name: str, value: Any) -> str:
    """A value of the column of that name.

    >>> text_of("efficiency", 0.9534), text_of("speedup", 1.907), text_of("memory_bytes", 1 << 30), text_of("seed", 42)
    ('95 %', '1.91x', '1.0 GB', '42')
    >>> text_of("lr", 0.0001), text_of("top1", 0.75286), text_of("vs_baseline", -0.0213), text_of("shape", [1, 2])
    ('0.0001', '75.29 %', '-2.13', '1, 2')
    """
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "" if name == "best" else "no"
    if isinstance(value, int | float):
        if name.endswith("bytes"):
            return size_text(value)
        if name in _TIMES or name.endswith("_speed_up"):
            return f"{value:.2f}x"
        if name == "vs_baseline":
            return f"{100 * value:+.2f}"
        if _is_share(name):
            learned = any(word in name for word in ("accuracy", "top1", "top5", "top-1", "error"))
            return f"{100 * value:.2f} %" if learned else share_text(value) if value >= 0 else f"{100 * value:.0f} %"
        if name in ("lr", "epochs") or name.endswith("_lr"):
            return f"{value:.4g}"
        if name in _WHOLE and float(value).is_integer():
            return f"{value:,.0f}" if name not in ("seed", "table") else f"{value:.0f}"
        return number_text(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {text_of(key, item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(text_of("", item) for item in value)
    return str(value)


def _is_share(name: str) -> bool:
    return name in _SHARES or name.endswith(_SHARE_ENDS) or name.startswith(("share_of", "top-1"))


def table(
    rows: Sequence[Mapping[str, Any]],
    title: str = "",
    *,
    first: Sequence[str] = (),
    leave_out: Iterable[str] = (),
    note: str = "",
    about: str = "",
) -> Table:
    """A table of all columns that any row has something in, some of them first. Columns ``X_low`` and ``X_high`` (or
    ``low`` and ``high``, of images/s) become the interval of ``X``; what is alike in all rows is said in the note. What
    was predicted or is above ideal is marked in the row and in its figures.

    >>> made = table([{"workers": 2, "images_per_s": 4812.3, "low": 4700.0, "high": 4900.0, "error": None}])
    >>> [column.title for column in made.columns], [(cell.text, cell.interval) for cell in made.rows[0]]
    (['workers', 'images/s'], [('2', ''), ('4,812', '4,700 to 4,900')])
    >>> table([{"workers": 1, "threads": 1}, {"workers": 2, "threads": 1}]).note
    'Alike in all rows: threads 1.'
    >>> made = table([{"workers": 2, "images_per_s": 9.0, "state": "done"}, {"workers": 4, "images_per_s": 17.0,
    ...                "state": "predicted"}])
    >>> [[cell.text for cell in row] for row in made.rows], made.marks
    ([['2', '9.00', 'measured'], ['4', '≈ 17.0', 'predicted']], ['', 'predicted'])
    """
    marks = [_mark(row) for row in rows]
    if "predicted" in marks:
        rows = [{**row, "state": "measured" if row.get("state") == "done" else row.get("state")} for row in rows]
    present = dict.fromkeys(name for row in rows for name in row)
    names = list(dict.fromkeys([*(name for name in first if name in present), *present]))
    bounds = _bounds(names)
    inside = {name for pair in bounds.values() for name in pair}
    shown = [
        name
        for name in names
        if name not in inside and name not in leave_out and any(text_of(name, row.get(name)) for row in rows)
    ]
    alike = _alike(shown, rows)
    columns: list[Column] = []
    cells: list[list[Cell]] = [[] for _ in rows]
    for name in (name for name in shown if name not in alike):
        number = all(_is_number(row.get(name)) for row in rows)
        columns.append(Column(heading(name), number))
        low, high = bounds.get(name, ("", ""))
        for line, row, mark in zip(cells, rows, marks, strict=True):
            text = text_of(name, row.get(name))
            ends = [text_of(name, row.get(end)) for end in (low, high)]
            shown_text = f"≈ {text}" if text and mark == "predicted" and number and _is_found(name) else text
            if text and mark == "above ideal" and name == "efficiency":
                shown_text = f"{text} ⚠"
            sort = (str(row[name]) if number else text) if text else ""
            line.append(Cell(shown_text, sort, _span(*ends) if text and all(ends) else ""))
    said = ", ".join(f"{heading(name)} {text}" for name, text in alike.items() if (name, text) != ("state", "done"))
    notes = (
        f"Alike in all rows: {said}." if said else "",
        "≈ was predicted, not measured." if "predicted" in marks else "",
        "⚠ is more than ideal, which is not to be believed." if "above ideal" in marks else "",
        note,
    )
    return Table(title, columns, cells, " ".join(part for part in notes if part), about, marks)


def _span(low: str, high: str) -> str:
    """
    >>> _span("93 %", "96 %"), _span("1.86x", "1.93x"), _span("2,910", "3,060"), _span("1.00x", "1.00x")
    ('93 to 96 %', '1.86 to 1.93x', '2,910 to 3,060', '')
    """
    if low == high:
        return ""  # as sure as can be: what others are measured by
    for unit in (" %", "x"):
        if low.endswith(unit) and high.endswith(unit):
            low = low.removesuffix(unit)
    return f"{low} to {high}"


def _mark(row: Mapping[str, Any]) -> str:
    """What is to be known before a row's figures are believed."""
    if "predicted" in (row.get("state"), row.get("how")):
        return "predicted"
    efficiency = row.get("efficiency")
    return "above ideal" if row.get("above_ideal") or above_ideal(_float(efficiency)) else ""


def _float(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _is_found(name: str) -> bool:
    """Whether a column is of what came out, rather than of what was asked for or published."""
    return name not in _WHOLE and not name.startswith("published")


def _bounds(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Which columns are the ends of which one's interval."""
    found = {name: (f"{name}_low", f"{name}_high") for name in names}
    found["images_per_s"] = ("low", "high") if "low" in names else found.get("images_per_s", ("", ""))
    return {name: pair for name, pair in found.items() if set(pair) <= set(names)}


def _alike(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Columns that say the same in every row, and what."""
    if len(rows) < 2:
        return {}
    texts = {name: {text_of(name, row.get(name)) for row in rows} for name in names if name not in _ALWAYS}
    return {name: next(iter(said)) for name, said in texts.items() if len(said) == 1}


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
