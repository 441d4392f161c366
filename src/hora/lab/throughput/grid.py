"""The points of a throughput experiment, and the trials of each in the order in which they run.

Repeats are taken by turns: all points once, then all again, so that whatever drifts (other users, the clock) hits all
alike. The limit of a point runs right beside it, once for all transports, as it uses none; one worker is its own limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Literal, get_args

import msgspec

from hora.lab.trial import SPEED_ONLY, Trial
from hora.workloads import options_of
from hora.workloads.turns import steps_for

__all__ = ["TRANSPORTS", "GridPoint", "GridSetup", "TransportName", "limits_of", "points", "turns"]

TransportName = Literal["auto", "shm", "gloo", "mpi"]
_ENDLESS = 10_000.0  # epochs; steps end it
TRANSPORTS: tuple[TransportName, ...] = get_args(TransportName)


class GridSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What all points have in common."""

    workload: str
    steps: int = 60
    repeats: int = 3
    options: Mapping[str, Any] = {}  # of `hora train`, by field name
    inter_threads: int | None = None
    hosts: str = ""

    def check(self, **more: Any) -> None:
        """Refuse, before anything runs, options that `hora train` would refuse.

        >>> GridSetup(workload="mnist").check(batch=0)
        Traceback (most recent call last):
        hora.errors.UsageError: --batch 0: Expected `int` >= 1. ...
        """
        options_of(self.workload).of({**self.options, **more})

    def batch(self) -> int:
        """The default batch size of a worker: the option's, or the workload's own.

        >>> GridSetup(workload="mnist").batch(), GridSetup(workload="mnist", options={"batch": 7}).batch()
        (100, 7)
        """
        return options_of(self.workload).of(self.options).batch

    def trial(
        self, point: GridPoint, turn: int, *, independent: bool = False, timeline: bool = False, by_turns: bool = False
    ) -> Trial:
        """One run of a point. Steps are all there is in it: no validation, and nothing is saved. By turns,
        it has about as many steps as a run and its limit have."""
        by = point.transport if point.strategy == "hora" else point.strategy
        part = "limit" if independent else "timeline" if timeline else "turns" if by_turns else by
        if point.strategy != "hora" and by_turns:
            part = f"turns-{by}"
        strategy = {"strategy": point.strategy} if point.strategy != "hora" and not independent else {}
        inter = f"-i{point.inter}" if point.inter else ""
        length = {"max_steps": steps_for(2 * self.steps // 3), "epochs": _ENDLESS} if by_turns else {}
        return Trial(
            name=f"{point.workers}w-b{point.batch}-t{point.threads}{inter}-{part}-{turn + 1}",
            workload=self.workload,
            workers=point.workers,
            options={"max_steps": self.steps, **SPEED_ONLY, **self.options, "batch": point.batch, **strategy, **length},
            threads_per_worker=point.threads,
            inter_threads=point.inter or self.inter_threads,
            transport="auto" if independent else point.transport,
            independent=independent,
            by_turns=by_turns,
            hosts=self.hosts,
            timeline=timeline,
        )


class GridPoint(msgspec.Struct, frozen=True, order=True):
    """One place in the grid."""

    workers: int
    batch: int
    threads: int
    transport: str = "auto"
    strategy: str = "hora"
    inter: int = 0  # threads of torch's inter-op pool; 0: as it is

    @property
    def place(self) -> tuple[int, int, int, int]:
        """What the limit depends on."""
        return self.workers, self.batch, self.threads, self.inter


def points(
    workers: Sequence[int],
    batches: Sequence[int],
    threads: Sequence[int],
    transports: Sequence[str],
    strategies: Sequence[str] = ("hora",),
    inters: Sequence[int] = (0,),
) -> list[GridPoint]:
    """All combinations, each once, in the order given. Transports are Hora's; a single worker averages nothing.

    >>> points([1, 2], [32], [1], ["auto", "gloo"])[2]
    GridPoint(workers=2, batch=32, threads=1, transport='auto', strategy='hora', inter=0)
    >>> [(point.workers, point.transport, point.strategy) for point in points([1, 2], [32], [1], ["shm"], ["ddp"])]
    [(1, 'shm', 'hora'), (2, 'auto', 'ddp')]
    """
    made = []
    for count, batch, each, inter in product(workers, batches, threads, inters):
        for strategy in strategies if count > 1 else ("hora",):
            for transport in transports if strategy == "hora" else ("auto",):
                made.append(GridPoint(count, batch, each, transport, strategy, inter))
    return list(dict.fromkeys(made))


def limits_of(grid: Sequence[GridPoint]) -> dict[tuple[int, int, int, int], GridPoint]:
    """The points whose limits are measured: one for each place with several workers.

    >>> list(limits_of(points([1, 2], [32], [1], ["auto", "gloo"])))
    [(2, 32, 1, 0)]
    """
    return {point.place: point for point in reversed(grid) if point.workers > 1}


def turns(job: GridSetup, grid: Sequence[GridPoint]) -> Iterator[tuple[GridPoint, Trial]]:
    """The trials of a grid, in the order in which they run.

    >>> for point, trial in turns(GridSetup(workload="mnist", repeats=1), points([2], [32], [1], ["auto", "gloo"])):
    ...     print(trial.name)
    2w-b32-t1-limit-1
    2w-b32-t1-auto-1
    2w-b32-t1-gloo-1
    """
    limits = limits_of(grid)
    for turn in range(job.repeats):
        for point in grid:
            if limits.get(point.place) is point:
                yield point, job.trial(point, turn, independent=True)
            yield point, job.trial(point, turn)
