"""The columns of every table of the lab: what each is called, and how its values are written.

Rows are plain dictionaries; the name of a value says what it is. Names that are known here have a heading of their own;
of all others the ending tells the unit (``first_batch_s``, ``memory_bytes``, ``cpu_share``). The terminal and the
report both ask here, so a new column is one line in ``_KNOWN``, or none.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from hora.text import count_text, duration_text, share_text, size_text, time_text

__all__ = ["Column", "Unit", "column", "is_number", "number_text", "value_text"]


class Unit(enum.Enum):
    """How numbers of a column are written."""

    NUMBER = enum.auto()  # four digits
    WHOLE = enum.auto()  # with commas
    LABEL = enum.auto()  # a number that only names something, such as a seed
    PER_S = enum.auto()
    SHARE = enum.auto()
    SCORE = enum.auto()  # a share that is worth two digits more: accuracies
    POINTS = enum.auto()  # a difference of two scores
    TIMES = enum.auto()
    BYTES = enum.auto()
    MB = enum.auto()
    SECONDS = enum.auto()
    MILLIS = enum.auto()
    DURATION = enum.auto()  # how long a whole run took


class Column(NamedTuple):
    """One kind of value; ``short`` is the heading where there is little room."""

    name: str
    title: str
    unit: Unit
    short: str

    def text(self, value: Any) -> str:
        """A value of this column; empty if there is none.

        >>> column("efficiency").text(0.9534), column("speed_up").text(1.907), column("seed").text(42000)
        ('95 %', '1.91x', '42000')
        >>> column("lr").text(0.0001), column("top1").text(0.75286), column("vs_baseline").text(-0.0213)
        ('0.0001', '75.29 %', '-2.13')
        >>> column("shape").text([1, 2]), column("dirty").text(True), column("error").text(None)
        ('1, 2', 'yes', '')
        """
        if value is None or value == "" or (isinstance(value, float) and not math.isfinite(value)):
            return ""
        if isinstance(value, bool):
            return "yes" if value else "" if self.name == "best" else "no"
        if isinstance(value, int | float):
            return _written(self.unit, value)
        if isinstance(value, Mapping):
            return ", ".join(f"{key} {value_text(key, item)}" for key, item in value.items())
        if isinstance(value, list | tuple):
            return ", ".join(self.text(item) for item in value)
        return str(value)


# Name: heading, unit if its ending does not tell, and a shorter heading.
_KNOWN: dict[str, tuple[str, Unit | None, str]] = {
    "images_per_s": ("images/s", Unit.PER_S, ""),
    "ideal_images_per_s": ("ideal images/s", Unit.PER_S, "ideal"),
    "limit_images_per_s": ("limit, images/s", Unit.PER_S, "limit"),
    "in_step_images_per_s": ("in step, images/s", Unit.PER_S, "in step"),
    "steady_images_per_s": ("steady images/s", Unit.PER_S, "steady"),
    "images_per_s_interval": ("images/s, ±", Unit.PER_S, ""),
    "images_per_s_per_worker": ("images/s a worker", Unit.PER_S, ""),
    "images_per_s_study": ("images/s, study's formula", Unit.PER_S, "study"),
    "published_images_per_s": ("published images/s", Unit.PER_S, "images/s"),
    "low": ("from", Unit.PER_S, ""),
    "high": ("to", Unit.PER_S, ""),
    "speed_up": ("speed-up", Unit.TIMES, ""),
    "speedup": ("speed-up", Unit.TIMES, ""),
    "published_speed_up": ("published speed-up", Unit.TIMES, "speed-up"),
    "efficiency": ("efficiency", Unit.SHARE, ""),
    "limit_efficiency": ("efficiency of the limit", Unit.SHARE, ""),
    "in_step_efficiency": ("efficiency in step", Unit.SHARE, ""),
    "share_of_limit": ("of the limit", Unit.SHARE, "of it"),
    "gain": ("gain", Unit.SHARE, ""),
    "cpu_share": ("CPU use", Unit.SHARE, "CPU"),
    "gpu_share": ("GPU use", Unit.SHARE, "GPU"),
    "data_share": ("waiting for data", Unit.SHARE, "data"),
    "data_s": ("wait for data", None, ""),
    "data_ms": ("wait for data", None, ""),
    "first_batch_s": ("first batch", None, "first"),
    "memory_mb": ("memory", None, ""),
    "time_s": ("time", Unit.DURATION, ""),
    "seconds": ("time in all", Unit.DURATION, ""),
    "published_minutes": ("published minutes", Unit.WHOLE, "min"),
    "lr": ("learning rate", Unit.NUMBER, "lr"),
    "peak_lr": ("peak learning rate", Unit.NUMBER, "peak lr"),
    "published_lr": ("published learning rate", Unit.NUMBER, "study's lr"),
    "warmup": ("warm-up", None, ""),
    "top1": ("top-1", Unit.SCORE, ""),
    "top5": ("top-5", Unit.SCORE, ""),
    "best_val_accuracy": ("best accuracy", Unit.SCORE, ""),
    "vs_baseline": ("against one worker, points", Unit.POINTS, "vs one"),
    "published_vs_baseline": ("published, against one worker, points", Unit.POINTS, "vs base"),
    "best_top1": ("best top-1", Unit.SCORE, ""),
    "final_top1": ("final top-1", Unit.SCORE, "final"),
    "best_top5": ("best top-5", Unit.SCORE, "top-5"),
    "published_top1": ("published top-1", Unit.SCORE, "top-1"),
    "published_top5": ("published top-5", Unit.SCORE, "top-5"),
    "best_epoch": ("best epoch", Unit.NUMBER, "epoch"),
    "experiment": ("experiment", Unit.WHOLE, "exp"),
    "global_batch": ("global batch", Unit.WHOLE, "batch"),
    "seeds": ("seeds", Unit.WHOLE, "n"),
    "seed": ("seed", Unit.LABEL, ""),
    "pid": ("pid", Unit.LABEL, ""),
    "table": ("table", Unit.LABEL, ""),
    "transport": ("transport", None, "by"),
    "generations": ("generations", Unit.WHOLE, "gens"),
    "recovery_s": ("recovery, median", None, "recovery"),
    "slowest_recovery_s": ("slowest recovery", None, "slowest"),
    "join_s": ("join, median", None, "join"),
    "without_steps_s": ("without steps", None, ""),
    "goodput": ("goodput", Unit.SHARE, ""),
    "same_bits": ("same bits", None, ""),
}
_WORDS = {"val": "validation", "top1": "top-1", "top5": "top-5", "lr": "learning rate", "cpu": "CPU", "gpu": "GPU",
          "warmup": "warm-up"}  # fmt: skip
_SCORES = ("accuracy", "top1", "top5", "top-1", "top-5", "error")
_ENDINGS = (
    ("_per_s", Unit.PER_S), ("_bytes", Unit.BYTES), ("_mb", Unit.MB), ("_ms", Unit.MILLIS), ("_s", Unit.SECONDS),
    ("_share", Unit.SHARE), ("_efficiency", Unit.SHARE), ("_speed_up", Unit.TIMES),
)  # fmt: skip
_SILENT = ("bytes", "mb", "ms", "s", "share")  # the value's text has the unit


def column(name: str) -> Column:
    """The column of that name.

    >>> [column(name).title for name in ("images_per_s", "fast_images_per_s", "first_batch_s", "val_top1")]
    ['images/s', 'fast images/s', 'first batch', 'validation top-1']
    """
    title, unit, short = _KNOWN.get(name, (_title(name), None, ""))
    return Column(name, title, unit or _unit(name), short or title)


def value_text(name: str, value: Any) -> str:
    """A value as its column writes it.

    >>> [value_text("images_per_s", 4812.3), value_text("first_batch_s", 2.34), value_text("memory_bytes", 3 << 30)]
    ['4,812', '2.34 s', '3 GB']
    """
    return column(name).text(value)


def is_number(value: Any) -> bool:
    """
    >>> is_number(0.5), is_number(True), is_number(None)
    (True, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool)


def number_text(value: float) -> str:
    """Four digits, or all that stand before the point.

    >>> [number_text(value) for value in (48123.4, 98.765, 1.23456, 0.0123456, 1e-7, 0, 12, 12345, math.nan)]
    ['48,123', '98.77', '1.235', '0.01235', '1e-07', '0', '12', '12,345', 'unknown']
    """
    if not math.isfinite(value):
        return "unknown"
    if isinstance(value, int) or abs(value) >= 9999.5:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _written(unit: Unit, value: float) -> str:
    match unit:
        case Unit.WHOLE:
            return f"{value:,.0f}" if float(value).is_integer() else number_text(value)
        case Unit.LABEL:
            return f"{value:.0f}"
        case Unit.PER_S:
            return count_text(value)
        case Unit.SHARE:
            return share_text(value)
        case Unit.SCORE:
            return f"{100 * value:.2f} %"
        case Unit.POINTS:
            return f"{100 * value:+.2f}"
        case Unit.TIMES:
            return f"{value:.2f}x" if value < 9.995 else f"{value:.1f}x"
        case Unit.BYTES:
            return size_text(value)
        case Unit.MB:
            return size_text(value * 2**20)
        case Unit.SECONDS:
            return time_text(value)
        case Unit.MILLIS:
            return time_text(value / 1e3)
        case Unit.DURATION:
            return duration_text(value) if value >= 10 else time_text(value)
        case Unit.NUMBER:
            return number_text(value)


def _unit(name: str) -> Unit:
    if any(word in name for word in _SCORES):
        return Unit.SCORE
    if name == "share" or name.startswith("share_of") or name.endswith(" of the limit"):
        return Unit.SHARE
    return next((unit for ending, unit in _ENDINGS if name.endswith(ending)), Unit.NUMBER)


def _title(name: str) -> str:
    if " " in name:
        return name
    if name.endswith("_per_s"):
        return f"{_title(name.removesuffix('_per_s'))}/s"
    words = name.replace("speed_up", "speed-up").split("_")
    if len(words) > 1 and words[-1] in _SILENT:
        words.pop()
    return " ".join(_WORDS.get(word, word) for word in words)
