"""Facts about a record's values: which matters most, which differ from the defaults, and when it was."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

__all__ = ["PLACES", "best_of", "changed", "when", "worth"]

PLACES = ("out", "json", "resume", "overwrite")  # of no importance for what comes out
# What a table or a comparison is about, most important first.
_MERITS = (
    "best_top1", "best_val_accuracy", "best_val_top1", "val_accuracy", "efficiency", "images_per_s", "best_val_loss",
)  # fmt: skip


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
    """A key to compare measures by: more is better.

    >>> worth("images_per_s", 5.0), worth("best_val_loss", 5.0)
    (5.0, -5.0)
    """
    return -value if "loss" in name else value


def changed(options: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """The options that differ from the defaults, without paths.

    >>> changed({"batch": 64, "lr": 0.1, "out": "a"}, {"batch": 32, "lr": 0.1, "out": ""})
    {'batch': 64}
    """
    return {name: value for name, value in options.items() if name not in PLACES and usual.get(name) != value}
