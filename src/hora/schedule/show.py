"""A plan as text: its table and a small plot, readable in any terminal and in a log."""

from __future__ import annotations

from typing import NamedTuple

from hora.schedule.plan import LearningRatePlan

__all__ = ["EpochRange", "plot", "stretches"]

BLOCKS = " ▁▂▃▄▅▆▇█"


class EpochRange(NamedTuple):
    """Epochs over which one thing happens to the rate: from the first one's start to the last one's last step."""

    first: int
    last: int
    begins: float
    ends: float


def stretches(plan: LearningRatePlan) -> list[EpochRange]:
    """The run in stretches: epochs that have one constant rate together, others each by itself unless they are many.

    >>> from hora.schedule import Warmup, parse_decay
    >>> for s in stretches(LearningRatePlan(batch=128, workers=32, warmup=Warmup("gradual", 2), decay=parse_decay("4"),
    ...     epochs=6)):
    ...     print(s.first, s.last, round(s.begins, 3), round(s.ends, 3))
    0 0 0.05 0.05
    1 1 0.825 0.825
    2 3 1.6 1.6
    4 5 0.16 0.16
    """
    last_step = 1 - 1 / plan.steps_per_epoch
    found: list[EpochRange] = []
    for epoch in range(max(1, round(plan.epochs))):
        begins, ends = plan.lr_at_epoch(epoch), plan.lr_at_epoch(epoch + last_step)
        before = found[-1] if found else None
        if before and before.begins == before.ends == begins == ends:
            found[-1] = before._replace(last=epoch)
        else:
            found.append(EpochRange(epoch, epoch, begins, ends))
    return _thinned(found)


def _thinned(found: list[EpochRange], most: int = 16) -> list[EpochRange]:
    """At most that many stretches, each of the same number of epochs."""
    if len(found) <= most:
        return found
    starts = [i * len(found) // most for i in range(most)]
    ends = [start - 1 for start in starts[1:]] + [len(found) - 1]
    return [
        EpochRange(found[a].first, found[b].last, found[a].begins, found[b].ends)
        for a, b in zip(starts, ends, strict=True)
    ]


def plot(plan: LearningRatePlan, width: int = 72, height: int = 8) -> str:
    """The rate over the run as rows of blocks, with its scale at the left and the epochs below.

    >>> from hora.schedule import parse_decay
    >>> print(plot(LearningRatePlan(base_lr=1.0, base_batch=32, decay=parse_decay("30,60"), epochs=90), width=30,
    ...     height=2))
            1 ┤██████████
            0 ┤██████████▂▂▂▂▂▂▂▂▂▂
              └──────────────────────────────
               0                    90 epochs
    """
    columns = [plan.lr_at_epoch((i + 0.5) / width * plan.epochs) for i in range(width)]
    top = max(columns) or 1.0
    lines = []
    for row in range(height - 1, -1, -1):
        cells = []
        for rate in columns:
            eighths = round(8 * (rate / top * height - row))
            cells.append(BLOCKS[min(8, max(0, eighths))])
        label = f"{top:.3g}" if row == height - 1 else "0" if row == 0 else ""
        lines.append(f"{label:>13} ┤{''.join(cells).rstrip()}")
    lines.append(" " * 14 + "└" + "─" * width)
    ending = f"{plan.epochs:g} epochs"
    lines.append(" " * 15 + "0" + " " * (width - 1 - len(ending)) + ending)
    return "\n".join(lines)
