"""How the step of a job divides. Pure: from outcomes and a timeline's report to shares of the step's time.

What is measured, and what follows from it, is in ``waterfall``; here it is computed from runs, with its intervals, and
more is added: which rank is the slow one, what a timeline says of the gradients, and what a link between hosts carries.

All figures are medians over all runs. Runs by turns have the limit, in step and the job in the same processes, so that
what disturbs a run is in all three, and what is compared is not blurred by it.
"""

from __future__ import annotations

import math
import statistics

import msgspec
import numpy as np

from hora.lab.scaling import waterfall
from hora.lab.scaling.series import Mode
from hora.lab.scaling.waterfall import Levels, Part
from hora.lab.throughput.estimate import Draws, Estimate, estimate
from hora.lab.throughput.pool import Pool, ratio
from hora.lab.trial.turns import meeting_s
from hora.timeline.report import TimelineReport
from hora.timeline.verdict import TimelineFinding

__all__ = ["Evidence", "HostTraffic", "Pauses", "RunConditions", "divide", "known"]


class RunConditions(msgspec.Struct, frozen=True, kw_only=True):
    """Where the job ran, and how."""

    mode: Mode = "weak"
    workers: int
    batch: int  # a worker's
    threads: int
    cores: int  # of a host, that may be used
    physical_cores: int = 0  # of a host, hyperthreads counted once; 0: not known
    hosts: int = 1
    workers_per_host: int
    crowd: int = 0  # workers of a machine, where hosts share one; 0: those of a host
    transport: str = "auto"
    loaders: int = 0
    loads_ahead: bool = True  # whether the workload has use for loader processes
    accumulates: bool = True  # and for --set accumulate
    compression: str = "none"
    others: float = 0.0  # the share of the machine that other processes took meanwhile

    @property
    def per_machine(self) -> int:
        return self.crowd or self.workers_per_host

    @property
    def oversubscribed(self) -> bool:
        return self.per_machine * self.threads > self.cores

    @property
    def full(self) -> bool:
        """Whether another worker on a host would have no core of its own."""
        return (self.per_machine + 1) * self.threads > self.cores


class Pauses(msgspec.Struct, frozen=True, kw_only=True):
    """What comes between steps, as it was measured in a run of its own (``--pauses``)."""

    validation_s: float = 0.0  # one
    save_s: float = 0.0  # one checkpoint
    save_every: float = 1.0  # epochs; 0: only at the end of a run
    steps_per_epoch: int = 1

    @property
    def validation_step_s(self) -> float:
        return self.validation_s / self.steps_per_epoch

    @property
    def save_step_s(self) -> float:
        return self.save_s / self.save_every / self.steps_per_epoch if self.save_every else 0.0


class HostTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """What crosses from host to host in a step, and how fast."""

    bytes: float  # that each host sends
    mbit_per_s: float
    seconds: float  # of a step that nothing hides
    share: float


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Shares are of the time of a step of the whole job, its pauses included, from 0 to 1; what was not measured is
    nan, or 0 where it could not have been."""

    conditions: RunConditions
    step_s: float  # without pauses
    alone_s: float
    efficiency: Estimate
    speed_up: Estimate = Estimate()
    parts: tuple[Part, ...] = ()
    cpu_share: float = math.nan
    data_s: float = 0.0
    contention: Estimate = Estimate(0.0, 0.0, 0.0)
    waiting: Estimate = Estimate()
    moving: Estimate = Estimate()
    communication: Estimate = Estimate(0.0, 0.0, 0.0)  # both together
    meeting_s: float = math.nan  # what four bytes take, when nobody is late
    slow_rank: int | None = None
    slow_rank_share: float = 0.0
    slow_rank_s: float = 0.0  # its own step without communication
    typical_s: float = 0.0  # the others'
    remedy_threads: int = 0
    remedy: Estimate = Estimate(0.0, 0.0, 0.0)  # saved by these threads, as a share of the step; measured
    pauses: Pauses | None = None
    timeline: tuple[TimelineFinding, ...] = ()
    arrivals_known: bool = False  # by the timeline, which then names a rank that is late, if one is
    gradient_bytes: float = math.nan  # a step
    batches: float = math.nan  # fused operations a step
    bytes_per_s: float = math.nan  # of the largest, as the timeline has it

    def share(self, *parts: str) -> float:
        """What these parts of the waterfall take together."""
        return waterfall.lost(self.parts, *parts)

    @property
    def latency(self) -> float:
        """The part of moving that would stay if there were next to nothing to move: an exchange of four bytes, as often
        as there are exchanges. Unknown without a timeline and a meeting that was timed."""
        if not math.isfinite(self.meeting_s) or not math.isfinite(self.batches):
            return math.nan
        return min(self.share("moving"), (self.batches + 1) * self.meeting_s / self.total_s)

    @property
    def total_s(self) -> float:
        """A step with its part of the pauses."""
        return sum(part.seconds for part in self.parts if math.isfinite(part.seconds)) or self.step_s

    @property
    def link(self) -> HostTraffic | None:
        """What a link between hosts carries; None on one host, or where too little is known."""
        hosts, moving = self.conditions.hosts, self.share("moving", "communication")
        if hosts < 2 or not math.isfinite(self.gradient_bytes) or moving <= 0:
            return None
        share = max(0.0, moving - known(self.latency))
        seconds = share * self.total_s
        sent = 2 * (hosts - 1) / hosts * self.gradient_bytes  # a ring's
        rate = self.bytes_per_s * sent / self.gradient_bytes if math.isfinite(self.bytes_per_s) else sent / seconds
        return HostTraffic(bytes=sent, mbit_per_s=8e-6 * rate, seconds=seconds, share=share) if seconds > 0 else None


def divide(
    conditions: RunConditions,
    job: Pool,
    limit: Pool,
    alone: Pool,
    whole: Pool,
    in_step: Pool | None = None,
    remedy: Pool | None = None,
    remedy_threads: int = 0,
    pauses: Pauses | None = None,
    report: TimelineReport | None = None,
) -> Evidence | None:
    """The evidence; None if the job or one worker alone could not be measured.

    Args:
        job: the job, with Hora.
        limit: the same processes without communication.
        alone: one worker with the same batch.
        whole: one worker with the batch that scaling begins with; in weak scaling the same as ``alone``.
        in_step: the same processes without communication, but meeting once a step.
        remedy: the job with ``remedy_threads``.
        report: of the job's timeline.
    """
    if not job.good or not alone.good or not whole.good:
        return None
    shrunk = conditions.workers if conditions.mode == "strong" else 1
    step, data = job.step_draws, known(job.data_s)
    at_job, at_alone = step - data, alone.step_draws - known(alone.data_s)
    at_ideal = (whole.step_draws - known(whole.data_s)) / shrunk
    at_limit = at_slowest = at_step = np.full(1, math.nan)
    slow, slowest_s, typical_s = None, 0.0, 0.0
    if limit.good:
        slow, slowest_s, typical_s = _ranks(_medians(limit))
        first = float(limit.step_draws[0])
        at_limit = limit.step_draws * typical_s / first - known(limit.data_s)
        at_slowest = limit.step_draws * slowest_s / first - known(limit.data_s)
    meeting = math.nan
    if in_step is not None and in_step.good:
        meeting = statistics.median(meeting_s(outcome) for outcome in in_step.good)
        at_step = in_step.step_draws - known(in_step.data_s) - known(meeting)
    paused = pauses.validation_step_s + pauses.save_step_s if pauses is not None else math.nan
    levels = Levels(
        ideal=float(at_ideal[0]) if conditions.mode == "strong" else float(at_alone[0]),
        alone=float(at_alone[0]),
        limit=float(at_limit[0]),
        in_step=float(at_step[0]),
        job=float(at_job[0]),
        data=data,
        pauses=paused,
    )
    total = step + known(paused)
    fusion = report.numbers.fusion if report else None
    return Evidence(
        conditions=conditions,
        step_s=float(step[0]),
        alone_s=float(alone.step_draws[0]),
        efficiency=ratio(job.speed_draws, whole.speed_draws, 1 / conditions.workers),
        speed_up=ratio(job.speed_draws, whole.speed_draws),
        parts=tuple(waterfall.parts(levels)),
        cpu_share=job.cpu_share,
        data_s=data,
        contention=_share((at_limit - at_alone) / total) if limit.good else Estimate(0.0, 0.0, 0.0),
        waiting=_share((at_step - at_limit) / total),
        moving=_share((at_job - at_step) / total),
        communication=_share((at_job - at_slowest) / total),
        meeting_s=meeting,
        slow_rank=slow if limit.good and len(limit.good[0].rank_step_s) > 1 else None,
        slow_rank_share=max(0.0, (slowest_s - typical_s) / float(total[0])),
        slow_rank_s=slowest_s,
        typical_s=typical_s,
        remedy_threads=remedy_threads,
        remedy=_share(1 - remedy.step_draws / step) if remedy and remedy.good else Estimate(0.0, 0.0, 0.0),
        pauses=pauses,
        timeline=tuple(report.findings) if report else (),
        arrivals_known=report is not None and report.numbers.arrivals_known,
        gradient_bytes=fusion.step_bytes if fusion and fusion.sized else math.nan,
        batches=fusion.per_step if fusion else math.nan,
        bytes_per_s=_rate(report),
    )


def _rate(report: TimelineReport | None) -> float:
    """Bytes a second of gradients while any of them moves: several may at once, and each alone would seem slower."""
    if report is None or not report.numbers.ranks or not report.numbers.fusion.sized:
        return math.nan
    fusion, first = report.numbers.fusion, report.numbers.ranks[0]
    moved = fusion.step_bytes * first.steps
    return 1e6 * moved / first.move_us if moved and first.move_us else math.nan


def _medians(limit: Pool) -> dict[int, float]:
    """The median step of each rank, in the median of the runs."""
    ranks = sorted({rank for outcome in limit.good for rank in outcome.rank_step_s}) or [0]
    return {
        rank: statistics.median(
            outcome.rank_step_s.get(rank, statistics.median(outcome.step_s)) for outcome in limit.good
        )
        for rank in ranks
    }


def _ranks(step_s: dict[int, float]) -> tuple[int, float, float]:
    """The slowest rank, its step, and the others' in the median.

    >>> _ranks({0: 0.1, 1: 0.1, 2: 0.3})
    (2, 0.3, 0.1)
    """
    slow = max(step_s, key=lambda rank: step_s[rank])
    others = [value for rank, value in step_s.items() if rank != slow]
    return slow, step_s[slow], statistics.median(others or [step_s[slow]])


def _share(draws: Draws) -> Estimate:
    """A part of the step; what came out negative is chance, and nothing. Not known if it was not measured."""
    return estimate(np.clip(draws, 0.0, 1.0)) if np.isfinite(draws[0]) else Estimate()


def known(value: float, otherwise: float = 0.0) -> float:
    """A figure, or something else if it was not measured."""
    return value if math.isfinite(value) else otherwise
