"""Values of records as people read them; a value's name tells what it is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from hora.lab.timeline.words import size_text

__all__ = ["best_of", "changed", "heading", "value_text", "when", "worth"]

_SHARES = ("share", "efficiency", "accuracy", "top1", "top5", "gain")
_HEADINGS = {
    "limit_images_per_s": "limit, images/s",
    "images_per_s_study": "images/s, study",
    "data_s": "wait for data",
    "data_ms": "data, ms",
    "step_ms": "step, ms",
    "seconds": "time in all",
    "cpu_share": "CPU use",
    "gpu_share": "GPU use",
    "peak_lr": "peak learning rate",
}
_PLACES = ("out", "json", "resume", "overwrite")  # of no importance for what comes out
# What a table or a comparison is about, most important first.
_MERITS = (
    "best_top1", "best_val_accuracy", "best_val_top1", "val_accuracy", "efficiency", "images_per_s", "best_val_loss",
)  # fmt: skip


def value_text(name: str, value: Any) -> str:
    """
    >>> [value_text("images_per_s", 4812.3), value_text("first_batch_s", 2.34), value_text("memory_bytes", 3 << 30)]
    ['4,812', '2.34 s', '3.0 GB']
    >>> value_text("val_accuracy", 0.98123), value_text("lr", 0.0125), value_text("dirty", True), value_text("x", None)
    ('98.12 %', '0.0125', 'yes', '-')
    """
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return _number_text(name, value)
    if isinstance(value, list | tuple):
        return ", ".join(value_text(name, each) for each in value) or "-"
    return str(value)


def _number_text(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        return size_text(value)
    if name.endswith("_mb"):
        return size_text(value * 2**20)
    if "per_s" in name or name in ("low", "high"):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if any(word in name for word in _SHARES):
        return (
            f"{value:.2%}".replace("%", " %")
            if "accuracy" in name or "top" in name
            else f"{value:.0%}".replace("%", " %")
        )
    if name.endswith("_s") or name == "seconds":
        return _duration(value)
    if isinstance(value, int):
        return f"{value:,}" if value >= 10_000 and name not in ("seed", "pid") else str(value)
    return f"{value:.4g}"


def _duration(seconds: float) -> str:
    """
    >>> _duration(0.0123), _duration(75.2), _duration(4000)
    ('12.3 ms', '1 min 15 s', '1 h 07 min')
    """
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    if seconds < 3600:
        return f"{round(seconds) // 60} min {round(seconds) % 60:02d} s"
    return f"{round(seconds / 60) // 60} h {round(seconds / 60) % 60:02d} min"


def heading(name: str) -> str:
    """
    >>> heading("images_per_s"), heading("first_batch_s"), heading("memory_bytes")
    ('images/s', 'first batch', 'memory')
    """
    if name in _HEADINGS:
        return _HEADINGS[name]
    for unit in ("_bytes", "_mb", "_s"):
        if name.endswith(unit) and not name.endswith("per_s"):
            name = name.removesuffix(unit)
    return name.replace("_per_s", "/s").replace("_", " ")


def when(iso: str) -> str:
    """A time of a record, in this machine's time zone.

    >>> when(""), len(when("2026-03-01T12:30:45.678Z"))
    ('-', 16)
    """
    try:
        return datetime.fromisoformat(iso).astimezone().strftime("%Y-%m-%d %H:%M")
    except ValueError:
        return "-"


def best_of(facts: Mapping[str, Any]) -> str:
    """The name of what matters most among these, of what is known; empty if none is.

    >>> best_of({"images_per_s": 100.0, "val_accuracy": None}), best_of({})
    ('images_per_s', '')
    """
    return next((name for name in _MERITS if isinstance(facts.get(name), int | float)), "")


def worth(name: str, value: float) -> float:
    """To be compared with others of its kind: more is better.

    >>> worth("images_per_s", 5.0), worth("best_val_loss", 5.0)
    (5.0, -5.0)
    """
    return -value if "loss" in name else value


def changed(options: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are not as usual, places on a disk left out.

    >>> changed({"batch": 64, "lr": 0.1, "out": "a"}, {"batch": 32, "lr": 0.1, "out": ""})
    {'batch': 64}
    """
    return {name: value for name, value in options.items() if name not in _PLACES and usual.get(name) != value}
