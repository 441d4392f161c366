"""The first advice, tried: one more run of the largest job with the options it names, and what they gained.

A gain that is computed from the parts of a step leaves out what the change does besides: a batch twice as large also
computes more efficiently, half the bytes also take the processor half the time. A run knows. Advice that gains nothing
is said to gain nothing.
"""

from __future__ import annotations

import msgspec

from hora.lab.scaling.evidence import Evidence
from hora.lab.scaling.verdict import BOTTLENECK
from hora.lab.throughput.grid import GridPoint, GridSetup
from hora.lab.throughput.pool import Pool, ratio
from hora.lab.trial import Trial
from hora.text import share_text
from hora.timeline.verdict import TimelineFinding
from hora.workloads.settings import settings

__all__ = ["told", "trial_of", "worth_trying"]

_BY_A_RUN = ("bandwidth", "latency", "input", "small batch")  # the other gains are measured already
_NOTHING = 0.01


def worth_trying(found: list[TimelineFinding]) -> bool:
    """Whether the first finding names options whose gain only a run can tell."""
    return bool(found) and found[0].kind in _BY_A_RUN and bool(found[0].follow) and found[0].share >= BOTTLENECK


def trial_of(job: GridSetup, point: GridPoint, follow: str, whole_batch: int) -> Trial:
    """A run of the job as the advice would have it. ``whole_batch`` is a worker's in weak scaling.

    >>> trial = trial_of(GridSetup(workload="mnist"), GridPoint(2, 32, 1), "--set compression=bf16", 64)
    >>> trial.name, trial.options["compression"], trial.options["batch"]
    ('2w-b32-t1-advice-1', 'bf16', 32)
    >>> trial_of(GridSetup(workload="mnist"), GridPoint(2, 32, 1, "gloo"), "--transport auto", 64).transport
    'auto'
    >>> trial_of(GridSetup(workload="mnist"), GridPoint(2, 32, 1), "--weak", 64).options["batch"]
    64
    """
    match follow.split():
        case ["--set", setting]:
            job = msgspec.structs.replace(job, options={**job.options, **settings(job.workload, [setting])})
        case ["--batch", size]:
            point = msgspec.structs.replace(point, batch=int(size))
        case ["--transport", name]:
            point = msgspec.structs.replace(point, transport=name)
        case ["--weak"]:
            point = msgspec.structs.replace(point, batch=whole_batch)
        case _:
            raise ValueError(f"advice that nobody can try: {follow}")
    trial = job.trial(point, 0, by_turns=True)
    return msgspec.structs.replace(trial, name=trial.name.replace("-turns-", "-advice-"))


def told(finding: TimelineFinding, seen: Evidence, before: Pool, after: Pool) -> TimelineFinding:
    """The finding with the gain that was measured; as it was if the run failed."""
    if not after.good:
        return finding
    faster = ratio(before.speed_draws, after.speed_draws)
    stepping = seen.step_s / seen.total_s  # pauses stay as they are
    gain = max(0.0, (1 - faster.value) * stepping)
    if gain < _NOTHING:
        extent = f"Tried: {finding.follow} gains nothing here"
    else:
        low, high = ((1 - side) * stepping for side in (faster.high, faster.low))
        extent = (
            f"Tried: with {finding.follow} as many images take {share_text(gain)} less time ({share_text(low)} to "
            f"{share_text(high)})"
        )
    return msgspec.structs.replace(finding, gain=gain, tried=True, change=f"{finding.change}. {extent}")
