"""How the step of the largest job divides. Pure: from outcomes and a timeline's report to shares of the step's time.

A step of n workers takes T. The same processes without communication take L, which is known of every rank, and one
worker alone takes A with the same batch. What is waited for data is known of all three; without it

    T = A + (typical L - A) + (slowest L - typical L) + (T - slowest L)
        computing  the machine     one slow rank           communication

and the timeline says what the last part is made of: waiting for each other, small operations, or many bytes. Strong
scaling has one part more: a share of the batch takes longer than that share of the whole batch's time.

Each figure is of the fastest of its runs: what disturbs a run from outside (other users, the clock) only ever slows it,
and a disturbance must not be taken for a bottleneck. Efficiency is of all runs.
"""

from __future__ import annotations

import math
import statistics

import msgspec
import numpy as np

from hora.lab.scaling.series import Mode
from hora.lab.throughput.estimate import Draws, Estimate, estimate
from hora.lab.throughput.pool import Pool, ratio
from hora.lab.timeline.report import Report
from hora.lab.timeline.verdict import Finding

__all__ = ["Evidence", "Place", "divide"]


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where the job ran, and how."""

    mode: Mode = "weak"
    workers: int
    batch: int  # a worker's
    threads: int
    cores: int  # of a host, that may be used
    physical_cores: int = 0  # of a host, hyperthreads counted once; 0: not known
    hosts: int = 1
    workers_per_host: int
    transport: str = "auto"
    loaders: int = 0
    compression: str = "none"
    others: float = 0.0  # the share of the machine that other processes took meanwhile

    @property
    def oversubscribed(self) -> bool:
        return self.workers_per_host * self.threads > self.cores


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Shares are of the time of a step of the whole job, from 0 to 1; what was not measured is nan, or 0 where it could
    not have been."""

    place: Place
    step_s: float
    alone_s: float
    efficiency: Estimate
    cpu_share: float = math.nan
    input: float = 0.0  # waiting for data, on the first rank
    data_s: float = 0.0
    machine: Estimate = Estimate(0.0, 0.0, 0.0)
    slow_rank: int | None = None
    slow_rank_share: float = 0.0
    slow_rank_s: float = 0.0  # its own step without communication
    typical_s: float = 0.0  # the others'
    communication: Estimate = Estimate(0.0, 0.0, 0.0)
    small_batch: Estimate = Estimate(0.0, 0.0, 0.0)
    remedy_threads: int = 0
    remedy: Estimate = Estimate(0.0, 0.0, 0.0)  # saved by these threads, as a share of the step; measured
    timeline: tuple[Finding, ...] = ()
    arrivals_known: bool = False  # by the timeline, which then names a rank that is late, if one is
    gradient_bytes: float = math.nan  # a step
    batches: float = math.nan  # fused operations a step


def divide(
    place: Place,
    job: Pool,
    limit: Pool,
    alone: Pool,
    whole: Pool,
    remedy: Pool | None = None,
    remedy_threads: int = 0,
    report: Report | None = None,
) -> Evidence | None:
    """The evidence; None if the job or one worker alone could not be measured.

    Args:
        job: the largest job.
        limit: the same processes without communication.
        alone: one worker with the same batch.
        whole: one worker with the batch that scaling begins with; in weak scaling the same as ``alone``.
        remedy: the largest job with ``remedy_threads``.
        report: of the job's timeline.
    """
    if not job.good or not alone.good or not whole.good:
        return None
    efficiency = ratio(job.speed_draws, whole.speed_draws, 1 / place.workers)
    ranks = limit.rank_step_s
    job, limit, alone, whole = job.best(), limit.best(), alone.best(), whole.best()
    step = job.step_draws
    data = _zero(job.data_s)
    computed, computed_alone = step - data, alone.step_draws - _zero(alone.data_s)
    without, slow, slowest_s, typical_s = computed, None, 0.0, 0.0
    slow_share, machine = 0.0, np.zeros_like(step)
    if limit.good:
        slow, slowest_s, typical_s = _ranks(ranks)
        first = float(limit.step_draws[0])
        machine = (limit.step_draws * typical_s / first - _zero(limit.data_s) - computed_alone) / step
        without = limit.step_draws * slowest_s / first - _zero(limit.data_s)
        slow_share = max(0.0, (slowest_s - typical_s) / float(step[0]))
    shrunk = place.workers if place.mode == "strong" else 1
    fusion = report.numbers.fusion if report else None
    return Evidence(
        place=place,
        step_s=float(step[0]),
        alone_s=float(alone.step_draws[0]),
        efficiency=efficiency,
        cpu_share=job.cpu_share,
        input=data / float(step[0]),
        data_s=data,
        machine=_share(machine),
        slow_rank=slow if len(ranks) > 1 else None,
        slow_rank_share=slow_share,
        slow_rank_s=slowest_s,
        typical_s=typical_s,
        communication=_share((computed - without) / step) if limit.good else Estimate(),
        small_batch=_share((alone.step_draws - whole.step_draws / shrunk) / step),
        remedy_threads=remedy_threads,
        remedy=_share(1 - remedy.best().step_draws / step) if remedy and remedy.good else Estimate(0.0, 0.0, 0.0),
        timeline=tuple(report.findings) if report else (),
        arrivals_known=report is not None and report.numbers.arrivals_known,
        gradient_bytes=fusion.bytes / max(1, fusion.batches) * fusion.per_step if fusion and fusion.sized else math.nan,
        batches=fusion.per_step if fusion else math.nan,
    )


def _ranks(step_s: dict[int, float]) -> tuple[int, float, float]:
    """The slowest rank, its step, and the others' in the median.

    >>> _ranks({0: 0.1, 1: 0.1, 2: 0.3})
    (2, 0.3, 0.1)
    """
    slow = max(step_s, key=lambda rank: step_s[rank])
    others = [value for rank, value in step_s.items() if rank != slow]
    return slow, step_s[slow], statistics.median(others or [step_s[slow]])


def _share(draws: Draws) -> Estimate:
    """A part of the step; what came out negative is chance, and nothing."""
    return estimate(np.clip(draws, 0.0, 1.0))


def _zero(value: float) -> float:
    return value if math.isfinite(value) else 0.0
