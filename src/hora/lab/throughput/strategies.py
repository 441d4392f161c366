"""Hora and PyTorch's DDP side by side: which of them are measured, and what rows that have both say of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hora.errors import UsageError

__all__ = ["NAMES", "compared", "parse"]

NAMES = {"hora": "Hora", "ddp": "DDP"}
_SAME = ("workers", "batch", "threads", "inter", "mode")


def parse(text: str) -> tuple[str, ...]:
    """What ``--strategies`` gives, each once.

    >>> parse("hora,ddp"), parse("DDP")
    (('hora', 'ddp'), ('ddp',))
    >>> parse("horovod")
    Traceback (most recent call last):
    hora.errors.UsageError: --strategies horovod: there is no 'horovod'. It can be hora, ddp, or both with a comma.
    """
    names = tuple(dict.fromkeys(name.strip().lower() for name in text.split(",")))
    if unknown := [name for name in names if name not in NAMES]:
        raise UsageError(
            f"--strategies {text}: there is no {unknown[0]!r}. It can be {', '.join(NAMES)}, or both with a comma."
        )
    return names


def compared(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for each place where both were measured; a difference is one if their 90 % intervals are apart.

    >>> row = {"workers": 2, "batch": 64, "threads": 1, "state": "done", "transport": "auto"}
    >>> hora = {**row, "strategy": "hora", "images_per_s": 4449.0, "low": 4400.0, "high": 4500.0}
    >>> ddp = {**row, "strategy": "ddp", "images_per_s": 2700.0, "low": 2650.0, "high": 2750.0}
    >>> compared([hora, ddp])
    ['2 workers, batch 64: Hora 4,449 images/s, DDP 2,700: Hora is 1.65 times as fast']
    >>> compared([hora, {**ddp, "images_per_s": 4400.0, "high": 4450.0}])
    ['2 workers, batch 64: Hora 4,449 images/s, DDP 4,400: no significant difference']
    """
    said = []
    for row in rows:
        if row.get("strategy") != "ddp" or not _known(row) or row["workers"] == 1:
            continue
        beside = [
            other for other in rows if other.get("strategy") == "hora" and _known(other)
            and all(other.get(name) == row.get(name) for name in _SAME)
        ]  # fmt: skip
        if not beside:
            continue
        hora = max(beside, key=lambda other: float(other["images_per_s"]))  # its best transport
        mode = f", {row['mode']} scaling" if row.get("mode") else ""
        speeds = f"Hora {_speed(hora['images_per_s'])} images/s, DDP {_speed(row['images_per_s'])}"
        said.append(f"{row['workers']} workers, batch {row['batch']}{mode}: {speeds}: {_difference(hora, row)}")
    return said


def _known(row: Mapping[str, Any]) -> bool:
    return row.get("state", "done") == "done" and bool(row.get("images_per_s"))


def _speed(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _difference(hora: Mapping[str, Any], ddp: Mapping[str, Any]) -> str:
    fast, slow = (hora, ddp) if hora["images_per_s"] >= ddp["images_per_s"] else (ddp, hora)
    low, high = fast.get("low"), slow.get("high")
    if low is not None and high is not None and low <= high:
        return "no significant difference"
    times = fast["images_per_s"] / slow["images_per_s"]
    return f"{NAMES[fast['strategy']]} is {times:.2f} times as fast"
