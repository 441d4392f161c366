"""Which combination of a throughput experiment is best, and what its rows say of why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hora.text import count_text

__all__ = ["best"]

Row = Mapping[str, Any]
_FACTORS = ("workers", "threads", "inter", "batch", "transport", "strategy")
_NAMES = {"transport": "transport ", "strategy": "strategy ", "batch": "batch "}
_MOST = 1.05  # of the limit: more cannot be
_CLOSE = 0.95  # of the limit: what is left is not communication's to give


def best(rows: Sequence[Row], cores: int) -> list[str]:
    """Which is the best, by how much, and why: from the rows that differ from it in one thing only.

    >>> rows = [{"workers": w, "threads": t, "batch": 64, "images_per_s": s, "low": s - 9, "high": s + 9,
    ...          "share_of_limit": 0.96} for w, t, s in ((1, 2, 900.0), (1, 1, 600.0), (2, 1, 1150.0))]
    >>> for line in best(rows, 2): print(line)
    best: 2 workers x 1 thread, 1,150 images/s
    why: 2 workers instead of 1 give 1.92 times; its 2 threads fill the 2 cores; communication takes 4 % of it
    """
    done = [row for row in rows if row.get("state", "done") == "done" and row.get("images_per_s")]
    if len(done) < 2:
        return []
    top = max(done, key=lambda row: float(row["images_per_s"]))
    varied = [name for name in _FACTORS if len({row.get(name) for row in done}) > 1]
    words = [_size(top), *(_word(top, name) for name in varied if name not in ("workers", "threads"))]
    even = [row for row in done if row is not top and _even(top, row)]
    beside = [
        ", ".join([_size(row), *(_word(row, n) for n in varied if n not in ("workers", "threads"))]) for row in even
    ]
    chance = f"; {' and '.join(beside[:2])} not significantly different" if beside else ""
    said = [f"best: {', '.join(words)}, {count_text(top['images_per_s'])} images/s{chance}"]
    reasons = [_gain(top, done, name, varied) for name in varied]
    reasons.append(_cores(top, cores))
    share = top.get("share_of_limit")
    if top["workers"] > 1 and share and share <= _MOST:
        lost = f"{100 * max(0.0, 1 - share):.0f} % of it"
        reasons.append(f"communication takes {lost}" if share >= _CLOSE else f"communication still takes {lost}")
    return [*said, f"why: {'; '.join(reason for reason in reasons if reason)}"]


def _size(row: Row) -> str:
    threads = row.get("threads")
    each = f" x {threads} thread{'s' if threads != 1 else ''}" if threads else ""
    return f"{row['workers']} worker{'s' if row['workers'] != 1 else ''}{each}"


def _word(row: Row, name: str) -> str:
    value = row.get(name)
    return f"inter {value or 'as it is'}" if name == "inter" else f"{_NAMES[name]}{value}"


def _even(top: Row, row: Row) -> bool:
    """Whether their intervals meet."""
    low, high = top.get("low"), row.get("high")
    return low is not None and high is not None and low <= high


def _gain(top: Row, rows: Sequence[Row], name: str, varied: Sequence[str]) -> str:
    """What its value of a factor gives, against the worst other value with all else the same."""
    others = [
        row for row in rows
        if row.get(name) != top.get(name)
        and all(row.get(other) == top.get(other) for other in varied if other != name)
        and not _even(top, row)
    ]  # fmt: skip
    if not others:
        return ""
    worst = min(others, key=lambda row: float(row["images_per_s"]))
    times = top["images_per_s"] / worst["images_per_s"]
    what = f"{top.get(name)} {name} instead of" if name == "workers" else f"{name} {top.get(name)} instead of"
    return f"{what} {worst.get(name)} give{'' if name == 'workers' else 's'} {times:.2f} times"


def _cores(top: Row, cores: int) -> str:
    used = top["workers"] * (top.get("threads") or 1)
    if used == cores:
        return f"its {used} threads fill the {cores} cores"
    return f"its {used} threads are {'more' if used > cores else 'fewer'} than the {cores} cores"
