"""The evidence in words: what keeps the job from scaling, what to change, and what that would gain.

Each finding has the share of a step's time that it takes, which is that of its part of the waterfall, and the gain of
the change as a share of it; both measured, unless the words say from what they are estimated. The largest share is the
bottleneck, if it is 15 % or more; otherwise the job is bound by computing, which is as it should be. What was not
measured is not advised against.
"""

from __future__ import annotations

import math

import msgspec

from hora.lab.scaling import computing
from hora.lab.scaling.evidence import Evidence, HostTraffic, known
from hora.lab.scaling.waterfall import above_ideal
from hora.text import link_text, plural, share_text, size_text, time_text
from hora.timeline.verdict import WORTH, TimelineFinding

__all__ = ["BOTTLENECK", "FASTER", "faster", "findings"]

BOTTLENECK = 0.15  # of the time; what takes less does not keep a job from scaling
MOST = 0.8  # of the waiting is what a rank is slower by itself: it is for that one, whatever a timeline says
FASTER = (2, 10)  # times a link may be faster
_LARGE_BYTES = 1 << 20  # a step, above which what cannot be told from latency counts as bandwidth


def findings(seen: Evidence) -> list[TimelineFinding]:
    """The bottleneck first, then whatever else is worth a change.

    >>> from hora.lab.scaling.evidence import RunConditions
    >>> from hora.lab.scaling.waterfall import Levels, parts
    >>> from hora.lab.throughput.estimate import Estimate
    >>> conditions = RunConditions(workers=2, workers_per_host=2, batch=32, threads=1, cores=2)
    >>> slow = tuple(parts(Levels(ideal=0.04, alone=0.04, limit=0.04, in_step=0.04, job=0.04, data=0.06)))
    >>> sure = Estimate(1, 0.9, 1)
    >>> seen = Evidence(conditions=conditions, step_s=0.1, alone_s=0.1, efficiency=sure, parts=slow, data_s=0.06)
    >>> findings(seen)[0].kind, findings(seen)[0].share
    ('input', 0.6)
    >>> clean = Evidence(conditions=conditions, step_s=0.1, alone_s=0.098, efficiency=Estimate(0.98, 0.97, 0.99))
    >>> [finding.kind for finding in findings(clean)]
    ['compute']
    """
    late = _late(seen)
    waiting = max(0.0, _waited(seen) - sum(finding.share for finding in late))
    found = [*late, *_moving(seen), *computing.input_waits(seen), *computing.small_batch(seen), *computing.pauses(seen)]
    if seen.conditions.oversubscribed:
        found += computing.oversubscription(seen, waiting)
    else:
        found += [*computing.machine(seen), *_turns(seen, waiting)]
    worth = sorted((finding for finding in found if finding.share >= WORTH), key=lambda finding: -finding.share)
    if not worth or worth[0].share < BOTTLENECK:
        unfit = above_ideal(seen.efficiency.value)
        worth.insert(0, _above(seen) if unfit else _compute(seen, sum(finding.share for finding in found)))
    if known(seen.speed_up.high, 1.0) < 1:
        worth[0] = msgspec.structs.replace(worth[0], what=f"{_slower(seen)} {worth[0].what}")
    return worth


def _slower(seen: Evidence) -> str:
    return (
        f"{plural(seen.conditions.workers, 'worker')} are slower than one: together they have "
        f"{seen.speed_up.value:.2f} times its images/s."
    )


# ---- what is waited for ----


def _waited(seen: Evidence) -> float:
    """The share of waiting for each other: measured in step; otherwise what a timeline says of it, as far as there is
    communication at all."""
    if not math.isnan(seen.waiting.value):
        return seen.share("waiting")
    seen_by_timeline = sum(finding.share for finding in seen.timeline if finding.kind in ("straggler", "imbalance"))
    return min(seen_by_timeline, seen.share("communication")) + seen.slow_rank_share


def _late(seen: Evidence) -> list[TimelineFinding]:
    """One rank that is slower than the others: by itself, or only in the job, as the timeline has it."""
    in_job = next((finding for finding in seen.timeline if finding.kind == "straggler"), None)
    slow_share = seen.slow_rank_share if seen.slow_rank is not None else 0.0
    confirmed = in_job is not None and in_job.rank == seen.slow_rank
    waited = seen.share("waiting")
    doubtful = seen.arrivals_known and not MOST * waited <= slow_share <= waited / MOST
    if not confirmed and (doubtful or slow_share < BOTTLENECK):
        slow_share = 0.0  # of any two ranks one is the slower, by chance
    most = max(slow_share, seen.share("waiting", "communication"))
    rank, share = seen.slow_rank, slow_share
    what = ""
    if slow_share >= WORTH:
        what = (
            f"Without communication a step takes rank {rank} {time_text(seen.slow_rank_s)}, and the others "
            f"{time_text(seen.typical_s)}: all wait for it {share_text(slow_share)} of the time"
        )
    if in_job is not None and (in_job.rank == rank or slow_share < WORTH):
        rank, share = in_job.rank, max(slow_share, min(in_job.share, most))
        what = ". ".join(text for text in (what, in_job.what.rstrip(".")) if text)
    if rank is None or share < WORTH:
        return []
    input_there = ""
    if rank == 0 and seen.share("data") >= WORTH:
        input_there = f" It waits for data {share_text(min(seen.share('data'), share))} of the time."
    return [
        TimelineFinding(
            kind="imbalance",
            title=f"rank {rank} is slow, and all wait for it",
            share=share,
            gain=share,
            what=what + "." + input_there,
            change=f"Look at what only rank {rank} does or has: its data, work that the others do not do (logging, "
            "validation), a slower or busier host, cores that another process uses. If it kept pace with the others "
            f"a step would take {share_text(share)} less",
            rank=rank,
        )
    ]


def _turns(seen: Evidence, share: float) -> list[TimelineFinding]:
    measured = (
        f"Meeting once a step with four bytes, and moving nothing, costs {share_text(seen.share('waiting'))} of a step"
        if not math.isnan(seen.waiting.value)
        else f"Workers wait for each other {share_text(share)} of the time"
    )
    if seen.conditions.others >= computing.CROWDED:
        measured += f" (other processes took {share_text(seen.conditions.others)} of this machine meanwhile)"
    ahead = "load data ahead (--set loaders=1); " if seen.conditions.loads_ahead and seen.share("data") >= WORTH else ""
    return [
        TimelineFinding(
            kind="imbalance",
            title="workers take turns being late",
            share=share,
            gain=share / 2,
            what=f"{measured}: a step takes as long as the slowest of {seen.conditions.workers} workers takes for it, "
            "and that is not always the same one",
            change=f"Give all the same amount of work; {ahead}see with `hora doctor` whether something else uses the "
            "cores. Sending less would gain nothing here. The gain is that of half the waiting",
        )
    ]


# ---- what is moved ----


def _moving(seen: Evidence) -> list[TimelineFinding]:
    """What is left when waiting is taken off: exchanges that take long however little they move, and bytes."""
    if math.isnan(seen.waiting.value):
        share = max(0.0, seen.share("communication") + seen.slow_rank_share - _waited(seen))
    else:
        share = seen.share("moving")
    latency = seen.latency
    if math.isnan(latency):  # not measured: what the bytes make likely
        small = seen.gradient_bytes < _LARGE_BYTES
        latency = share if small else 0.0
    latency = min(share, latency)
    return [_bandwidth(seen, share - latency), _latency(seen, latency)]


def faster(seen: Evidence, link: HostTraffic) -> list[tuple[int, float, float]]:
    """What a link that many times as fast would give: times, the share of a step saved, and the speed-up then."""
    made = []
    for times in FASTER:
        gain = link.share * (1 - 1 / times)
        made.append((times, gain, known(seen.speed_up.value) / (1 - gain)))
    return made


def _bandwidth(seen: Evidence, share: float) -> TimelineFinding:
    conditions, size = seen.conditions, seen.gradient_bytes
    bytes_text = f"{size_text(size)} of gradients a step" if math.isfinite(size) else "the gradients of a step"
    what = _costs(seen, share, f"to move {bytes_text}")
    link = seen.link
    changes = []
    gain, follow = share / 2, "--set accumulate=2" if conditions.accumulates else f"--batch {2 * conditions.batch}"
    if link is not None:
        what += (
            f". The link between the hosts: {link_text(link.mbit_per_s)}, {time_text(link.seconds)} of a step of "
            f"{time_text(seen.total_s)}"
        )
    if conditions.hosts == 1 and conditions.transport in ("gloo", "mpi"):
        changes.append(
            f"Take --transport auto: on one host data then moves through shared memory, not by {conditions.transport}, "
            f"which would save most of {share_text(share)}"
        )
        gain, follow = share, "--transport auto"
    elif conditions.compression == "none" and conditions.hosts > 1:
        gain = _half_the_bytes(seen, share)
        changes.append(f"Send half as much, --set compression=bf16: {share_text(gain)} less time a step")
        follow = "--set compression=bf16"
    more = 1 / (1 - share / 2) - 1
    often = "--set accumulate=2, or twice the batch" if conditions.accumulates else "twice the batch"
    changes.append(
        f"Exchange half as often ({often}): the same bytes for twice the images, {share_text(more)} more images/s"
    )
    if link is not None:
        changes += [
            f"A link {times} times as fast ({link_text(times * link.mbit_per_s)}) would save {share_text(saved)} of a "
            f"step: {plural(conditions.workers, 'worker')} would then have {speed_up:.2f} times the images/s of one"
            for times, saved, speed_up in faster(seen, link)
        ]
    return TimelineFinding(
        kind="bandwidth",
        title="moving gradients takes the time",
        share=share,
        gain=gain,
        what=what,
        change=". ".join(changes),
        follow=follow,
    )


def _half_the_bytes(seen: Evidence, share: float) -> float:
    """What half the bytes would save: half the time that they are on their way, of which some is hidden and stays so,
    but no more than is not hidden."""
    if not math.isfinite(seen.bytes_per_s) or not math.isfinite(seen.gradient_bytes):
        return share / 2
    return min(share, seen.gradient_bytes / seen.bytes_per_s / seen.total_s / 2)


def _latency(seen: Evidence, share: float) -> TimelineFinding:
    conditions = seen.conditions
    per_step = plural(seen.batches, "exchange") if math.isfinite(seen.batches) else "exchanges"
    size = f", {size_text(seen.gradient_bytes)} in all" if math.isfinite(seen.gradient_bytes) else ""
    bare = f". Four bytes alone take {time_text(seen.meeting_s)}" if math.isfinite(seen.meeting_s) else ""
    more = 1 / (1 - share / 2) - 1
    link = "the latency between the hosts (`hora doctor -H`), " if conditions.hosts > 1 else ""
    by_gloo = conditions.hosts == 1 and conditions.transport in ("gloo", "mpi")
    first = "Take --transport auto, which is shared memory on one host. " if by_gloo else ""
    often = "--set accumulate=2, or twice the batch" if conditions.accumulates else "twice the batch"
    return TimelineFinding(
        kind="latency",
        title="each exchange takes long, however little it moves",
        share=share,
        gain=share / 2,
        what=_costs(seen, share, f"for {per_step} a step{size}") + bare,
        change=f"{first}Exchange half as often ({often}): {share_text(more)} more images/s. Then look at {link}"
        "HORA_FUSION_THRESHOLD and whether each worker has a core of its own",
        follow="--set accumulate=2" if conditions.accumulates else f"--batch {2 * conditions.batch}",
    )


def _costs(seen: Evidence, share: float, why: str) -> str:
    if math.isnan(seen.moving.value):
        return (
            f"Of a step of {time_text(seen.total_s)}, {share_text(seen.share('communication'))} is communication: so "
            "much less the same processes take without it; waiting and moving were not measured apart, and this is by "
            f"what the timeline sees. {share_text(share)} goes {why}"
        )
    low, high = known(seen.moving.low), known(seen.moving.high)
    return (
        f"Of a step of {time_text(seen.total_s)}, {share_text(seen.share('moving'))} ({share_text(low)} to "
        f"{share_text(high)}) is moving: so much less the same processes take if they only meet once a step. "
        f"{share_text(share)} goes {why}"
    )


def _above(seen: Evidence) -> TimelineFinding:
    sure = seen.efficiency
    return TimelineFinding(
        kind="above ideal",
        title="more than ideal is impossible: do not trust this result",
        share=0.0,
        gain=0.0,
        what=f"{plural(seen.conditions.workers, 'worker')} were measured at {share_text(sure.value)} of ideal "
        f"({share_text(sure.low)} to {share_text(sure.high)}): the one worker that they are compared "
        "with was disturbed, or had less of the machine than each of them",
        change="Measure again on a quiet machine, with more --repeats or --threads 1; do not quote this figure",
    )


def _compute(seen: Evidence, lost: float) -> TimelineFinding:
    conditions, rest = seen.conditions, max(0.0, 1 - lost)
    free = conditions.cores // conditions.per_machine
    spare = (
        f"there are cores for {plural(free, 'thread')} a worker (--threads {free}); "
        if free > conditions.threads
        else ""
    )
    size = f" --gradient-mb {seen.gradient_bytes / 2**20:.3g}" if math.isfinite(seen.gradient_bytes) else ""
    better, sure = seen.share("moving", "communication"), seen.efficiency
    more = "More workers help"
    if conditions.full and (conditions.hosts == 1 or conditions.workers_per_host > 1):
        more += ", on more hosts: the cores of " + ("these are" if conditions.hosts > 1 else "this one are") + " used"
    return TimelineFinding(
        kind="compute",
        title="computing takes the time",
        share=rest,
        gain=better,
        what=f"With {plural(conditions.workers, 'worker')} {share_text(rest)} of a step is computing; efficiency is "
        f"{share_text(sure.value)} ({share_text(sure.low)} to {share_text(sure.high)})",
        change=f"{more}. To make a step itself faster: {spare}--set precision=bf16 where the processor has it. Better "
        f"communication would gain {share_text(better)} at most. What more workers would give: `hora plan "
        f"--workers {2 * conditions.workers} --batch {conditions.batch} --step-ms {1e3 * seen.alone_s:.3g}{size} "
        f"--per-host {conditions.workers_per_host}`",
    )
