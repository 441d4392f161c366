"""The generations of an elastic run as rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hora.workloads.folder import Generation

__all__ = ["rows"]


def rows(generations: Sequence[Generation]) -> list[dict[str, Any]]:
    """
    >>> (row,) = rows([Generation(number=2, began="2026-01-01T10:00:00.000Z", step=7, members=[(0, "h", 1)], left=[1])])
    >>> row["began"], row["workers"], row["left"]
    ('10:00:00', 1, '1')
    """
    return [
        {
            "generation": str(each.number),
            "began": each.began[11:19],
            "after step": each.step,
            "workers": len(each.members),
            "left": ", ".join(map(str, each.left)),
            "came": ", ".join(map(str, each.came)) if each.number > 1 else "",
            "without_steps_s": each.without_steps_s,
        }
        for each in generations
    ]
