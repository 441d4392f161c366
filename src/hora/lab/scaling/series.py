"""Weak and strong scaling, as points to be measured.

Weak: every worker takes the same batch, so that the job's grows with the workers. Strong: the job's batch stays, and is
divided. Both begin with one worker, and all workers compute with the same number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from hora.errors import UsageError
from hora.lab.throughput.cores import workers_per_host
from hora.lab.throughput.grid import GridPoint

__all__ = ["Mode", "Series", "series"]

Mode = Literal["weak", "strong"]


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of scaling: the points that are its rows, and those beside them that its verdict needs."""

    mode: Mode
    points: tuple[GridPoint, ...]  # the first has one worker
    strategy: str = "hora"
    beside: bool = False  # stands beside Hora's, whose one worker is its own
    alone: GridPoint  # one worker with the batch that each worker of the largest job has
    remedy: GridPoint | None = None  # the largest job with as many threads as there are cores, if it has more

    @property
    def largest(self) -> GridPoint:
        return self.points[-1]

    @property
    def all_points(self) -> tuple[GridPoint, ...]:
        return tuple(dict.fromkeys([*self.points, self.alone, *([self.remedy] if self.remedy else [])]))


def series(
    mode: Mode,
    workers: Sequence[int],
    batch: int,
    threads: int,
    *,
    transport: str = "auto",
    strategy: str = "hora",
    beside: bool = False,
    cores: int,
    crowd: int = 0,
    hosts: str = "",
) -> Series:
    """The series of a mode; ``batch`` is a worker's in weak scaling and the job's in strong. ``crowd`` workers of the
    largest job share a machine's ``cores``; by itself as many as are on a host.

    >>> [(point.workers, point.batch) for point in series("strong", [1, 2, 4], 64, 1, cores=4).points]
    [(1, 64), (2, 32), (4, 16)]
    >>> series("weak", [1, 2], 64, 2, cores=2).remedy
    GridPoint(workers=2, batch=64, threads=1, transport='auto', strategy='hora', inter=0)
    >>> series("strong", [1, 3], 64, 1, cores=4)
    Traceback (most recent call last):
    hora.errors.UsageError: strong scaling divides the batch of the job, and 64 cannot be divided among 3 workers. ...
    """
    counts = sorted({1, *workers})
    if mode == "strong" and (uneven := [count for count in counts if batch % count]):
        step = math.lcm(*counts)
        below, above = batch // step * step, (batch // step + 1) * step
        fits = " or ".join(str(size) for size in (below, above) if size)
        raise UsageError(
            f"strong scaling divides the batch of the job, and {batch} cannot be divided among {uneven[0]} workers. "
            f"Uneven shares would measure the largest. Give --batch {fits}, or other --workers."
        )
    by = (transport if strategy == "hora" else "auto", strategy)
    points = [
        GridPoint(count, batch if mode == "weak" else batch // count, threads, *(by if count > 1 else ("auto", "hora")))
        for count in counts
    ]
    largest = points[-1]
    fair = max(1, cores // (crowd or workers_per_host(largest.workers, hosts)))
    return Series(
        mode=mode,
        points=tuple(points),
        strategy=strategy,
        beside=beside,
        alone=msgspec.structs.replace(points[0], batch=largest.batch),
        remedy=msgspec.structs.replace(largest, threads=fair) if fair < threads and strategy == "hora" else None,
    )
