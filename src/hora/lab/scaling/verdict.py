"""The evidence in words: what keeps the job from scaling, what to change, and what that would gain.

Each finding has the share of a step's time that it takes, which is that of its part of the waterfall, and the gain of
the change as a share of it; both measured, unless the words say from what they are estimated. The largest share is the
bottleneck, if it is 15 % or more; otherwise the job is bound by computing, which is as it should be. What was not
measured is not advised against.
"""

from __future__ import annotations

import math

import msgspec

from hora.lab.bench.figures import time_text
from hora.lab.scaling.evidence import Evidence, Link, Place
from hora.lab.scaling.waterfall import above_ideal
from hora.lab.timeline.verdict import WORTH, Finding
from hora.lab.timeline.words import plural, share_text, size_text

__all__ = ["FASTER", "KINDS", "faster", "findings", "rate_text"]

KINDS = {
    "compute": "computing takes the time",
    "input": "waiting for data",
    "bandwidth": "communication, by bandwidth",
    "latency": "communication, by latency",
    "imbalance": "workers wait for each other",
    "oversubscription": "more threads than cores",
    "machine": "the machine itself is the limit",
    "small batch": "small batches compute inefficiently",
    "pauses": "validation and checkpoints",
    "above ideal": "measured as more than ideal",
}
BOTTLENECK = 0.15  # of the time; what takes less does not keep a job from scaling
CROWDED = 0.25  # of the machine, taken by others, explains that workers which do not communicate are slow
FASTER = (2, 10)  # times a link may be faster
_LARGE_BYTES = 1 << 20  # a step, above which what cannot be told from latency counts as bandwidth


def findings(seen: Evidence) -> list[Finding]:
    """The bottleneck first, then whatever else is worth a change.

    >>> from hora.lab.scaling.evidence import Place
    >>> from hora.lab.scaling.waterfall import Levels, parts
    >>> from hora.lab.throughput.estimate import Estimate
    >>> place = Place(workers=2, workers_per_host=2, batch=32, threads=1, cores=2)
    >>> slow = tuple(parts(Levels(ideal=0.04, alone=0.04, limit=0.04, in_step=0.04, job=0.04, data=0.06)))
    >>> seen = Evidence(place=place, step_s=0.1, alone_s=0.1, efficiency=Estimate(1, 0.9, 1), parts=slow, data_s=0.06)
    >>> findings(seen)[0].kind, findings(seen)[0].share
    ('input', 0.6)
    >>> clean = Evidence(place=place, step_s=0.1, alone_s=0.098, efficiency=Estimate(0.98, 0.97, 0.99))
    >>> [finding.kind for finding in findings(clean)]
    ['compute']
    """
    late = _late(seen)
    waiting = max(0.0, _waited(seen) - sum(finding.share for finding in late))
    found = [*late, *_moving(seen, late), *_input(seen), *_small_batch(seen), *_pauses(seen)]
    if seen.place.oversubscribed:
        found += _oversubscription(seen, waiting)
    else:
        found += [*_machine(seen), *_turns(seen, waiting)]
    worth = sorted((finding for finding in found if finding.share >= WORTH), key=lambda finding: -finding.share)
    if not worth or worth[0].share < BOTTLENECK:
        unfit = above_ideal(seen.efficiency.value)
        worth.insert(0, _above(seen) if unfit else _compute(seen, sum(finding.share for finding in found)))
    if _known(seen.speed_up.high, 1.0) < 1:
        worth[0] = msgspec.structs.replace(worth[0], what=f"{_slower(seen)} {worth[0].what}")
    return worth


def _slower(seen: Evidence) -> str:
    return (
        f"{plural(seen.place.workers, 'worker')} are slower than one: together they have {seen.speed_up.value:.2f} "
        "times its images/s."
    )


# ---- what is waited for ----


def _waited(seen: Evidence) -> float:
    """The share of waiting for each other: measured in step; otherwise what a timeline says of it, as far as there is
    communication at all."""
    if not math.isnan(seen.waiting.value):
        return seen.share("waiting")
    seen_by_timeline = sum(finding.share for finding in seen.timeline if finding.kind in ("straggler", "imbalance"))
    return min(seen_by_timeline, seen.share("communication")) + seen.slow_rank_share


def _late(seen: Evidence) -> list[Finding]:
    """One rank that is slower than the others: by itself, or only in the job, as the timeline has it."""
    in_job = next((finding for finding in seen.timeline if finding.kind == "straggler"), None)
    by_itself = seen.slow_rank_share if seen.slow_rank is not None else 0.0
    confirmed = in_job is not None and in_job.rank == seen.slow_rank
    if not confirmed and (seen.arrivals_known or by_itself < BOTTLENECK):
        by_itself = 0.0  # of any two ranks one is the slower, by chance
    most = max(by_itself, seen.share("waiting", "communication"))
    rank, share = seen.slow_rank, by_itself
    what = ""
    if by_itself >= WORTH:
        what = (
            f"Without communication a step takes rank {rank} {_ms(seen.slow_rank_s)}, and the others "
            f"{_ms(seen.typical_s)}: all wait for it {share_text(by_itself)} of the time"
        )
    if in_job is not None and (in_job.rank == rank or by_itself < WORTH):
        rank, share = in_job.rank, max(by_itself, min(in_job.share, most))
        what = ". ".join(text for text in (what, in_job.what.rstrip(".")) if text)
    if rank is None or share < WORTH:
        return []
    input_there = ""
    if rank == 0 and seen.share("data") >= WORTH:
        input_there = f" It waits for data {share_text(min(seen.share('data'), share))} of the time."
    return [
        Finding(
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


def _turns(seen: Evidence, share: float) -> list[Finding]:
    measured = (
        f"Meeting once a step with four bytes, and moving nothing, costs {share_text(seen.share('waiting'))} of a step"
        if not math.isnan(seen.waiting.value)
        else f"Workers wait for each other {share_text(share)} of the time"
    )
    ahead = "load data ahead (--set loaders=1); " if seen.place.loads_ahead and seen.share("data") >= WORTH else ""
    return [
        Finding(
            kind="imbalance",
            title="workers take turns being late",
            share=share,
            gain=share / 2,
            what=f"{measured}: a step takes as long as the slowest of {seen.place.workers} workers takes for it, and "
            "that is not always the same one",
            change=f"Give all the same amount of work; {ahead}see with `hora doctor` whether something else uses the "
            "cores. Sending less would gain nothing here. The gain is that of half the waiting",
        )
    ]


# ---- what is moved ----


def _moving(seen: Evidence, late: list[Finding]) -> list[Finding]:
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


def faster(seen: Evidence, link: Link) -> list[tuple[int, float, float]]:
    """What a link so many times as fast would give: times, the share of a step saved, and the speed-up then."""
    made = []
    for times in FASTER:
        gain = link.share * (1 - 1 / times)
        made.append((times, gain, _known(seen.speed_up.value) / (1 - gain)))
    return made


def rate_text(mbit_per_s: float) -> str:
    """
    >>> rate_text(94.2), rate_text(1234.0)
    ('94 Mbit/s', '1.2 Gbit/s')
    """
    return f"{mbit_per_s:.0f} Mbit/s" if mbit_per_s < 1000 else f"{mbit_per_s / 1e3:.1f} Gbit/s"


def _bandwidth(seen: Evidence, share: float) -> Finding:
    place, size = seen.place, seen.gradient_bytes
    bytes_text = f"{size_text(size)} of gradients a step" if math.isfinite(size) else "the gradients of a step"
    what = _costs(seen, share, f"to move {bytes_text}")
    link = seen.link
    changes = []
    gain, follow = share / 2, "--set accumulate=2" if place.accumulates else f"--batch {2 * place.batch}"
    if link is not None:
        what += (
            f". The link between the hosts: {rate_text(link.mbit_per_s)}, {_ms(link.seconds)} of a step of "
            f"{_ms(seen.total_s)}"
        )
    if place.hosts == 1 and place.transport in ("gloo", "mpi"):
        changes.append(
            f"Take --transport auto: on one host data then moves through shared memory, not by {place.transport}, "
            f"which would save most of {share_text(share)}"
        )
        gain, follow = share, "--transport auto"
    elif place.compression == "none" and place.hosts > 1:
        gain = _half_the_bytes(seen, share)
        changes.append(f"Send half as much, --set compression=bf16: {share_text(gain)} less time a step")
        follow = "--set compression=bf16"
    more = 1 / (1 - share / 2) - 1
    often = "--set accumulate=2, or twice the batch" if place.accumulates else "twice the batch"
    changes.append(
        f"Exchange half as often ({often}): the same bytes for twice the images, {share_text(more)} more images/s"
    )
    if link is not None:
        changes += [
            f"A link {times} times as fast ({rate_text(times * link.mbit_per_s)}) would save {share_text(saved)} of a "
            f"step: {plural(place.workers, 'worker')} would then have {speed_up:.2f} times the images/s of one"
            for times, saved, speed_up in faster(seen, link)
        ]
    return Finding(
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


def _latency(seen: Evidence, share: float) -> Finding:
    place = seen.place
    per_step = plural(seen.batches, "exchange") if math.isfinite(seen.batches) else "exchanges"
    size = f", {size_text(seen.gradient_bytes)} in all" if math.isfinite(seen.gradient_bytes) else ""
    bare = f". Four bytes alone take {_ms(seen.meeting_s)}" if math.isfinite(seen.meeting_s) else ""
    more = 1 / (1 - share / 2) - 1
    link = "the latency between the hosts (`hora doctor -H`), " if place.hosts > 1 else ""
    by_gloo = place.hosts == 1 and place.transport in ("gloo", "mpi")
    first = "Take --transport auto, which is shared memory on one host. " if by_gloo else ""
    often = "--set accumulate=2, or twice the batch" if place.accumulates else "twice the batch"
    return Finding(
        kind="latency",
        title="each exchange takes long, however little it moves",
        share=share,
        gain=share / 2,
        what=_costs(seen, share, f"for {per_step} a step{size}") + bare,
        change=f"{first}Exchange half as often ({often}): {share_text(more)} more images/s. Then look at {link}"
        "HORA_FUSION_THRESHOLD and whether each worker has a core of its own",
        follow="--set accumulate=2" if place.accumulates else f"--batch {2 * place.batch}",
    )


def _costs(seen: Evidence, share: float, why: str) -> str:
    if math.isnan(seen.moving.value):
        return (
            f"Of a step of {_ms(seen.total_s)}, {share_text(seen.share('communication'))} is communication: so much "
            "less the same processes take without it; waiting and moving were not measured apart, and this is by what "
            f"the timeline sees. {share_text(share)} goes {why}"
        )
    low, high = _known(seen.moving.low), _known(seen.moving.high)
    return (
        f"Of a step of {_ms(seen.total_s)}, {share_text(seen.share('moving'))} ({share_text(low)} to "
        f"{share_text(high)}) is moving: so much less the same processes take if they only meet once a step. "
        f"{share_text(share)} goes {why}"
    )


# ---- what is computed, and on what ----


def _input(seen: Evidence) -> list[Finding]:
    """What all workers wait for data; if the first is a slow rank, what it waits more than the others is its own."""
    own = seen.slow_rank_share if seen.slow_rank == 0 else 0.0
    share, place = max(0.0, seen.share("data") - own), seen.place
    busy = seen.cpu_share * place.cores >= 0.85 * min(place.cores, place.per_machine * place.threads)
    spare = place.cores - place.per_machine * place.threads
    follow = ""
    if busy and spare < place.per_machine:
        how = (
            f"The cores are busy meanwhile ({share_text(seen.cpu_share)}): it is computing (decoding, augmentation), "
            "and loader processes need cores of their own. Make it cheaper: smaller pictures, data decoded before"
        )
        gain = share / 2
    elif not place.loads_ahead:
        how = (
            "The cores are not busy meanwhile: it waits for storage. Stage the data on a local disk (`hora data stage`)"
        )
        gain = share
    else:
        loaders = place.loaders + max(1, min(8, math.ceil(share / max(0.1, 1 - share))))
        how = (
            "The cores are not busy meanwhile: it waits for storage. Load ahead in processes of their own, --set "
            f"loaders={loaders}; stage the data on a local disk (`hora data stage`)"
        )
        gain = 1 - max(1 - share, share / max(1, loaders - place.loaders))
        follow = f"--set loaders={loaders}"
    return [
        Finding(
            kind="input",
            title="workers wait for data",
            share=share,
            gain=gain,
            what=f"{_ms(seen.data_s)} of a step of {_ms(seen.total_s)} is waiting for the next batch, on every worker, "
            "however many there are",
            change=how + f". If all of it is hidden behind computing, a step takes {share_text(gain)} less",
            follow=follow,
        )
    ]


def _where(place: Place) -> str:
    if place.hosts == 1:
        return ""
    return " of each host" if place.per_machine == place.workers_per_host else ", as these hosts are one machine"


def _oversubscription(seen: Evidence, waiting: float) -> list[Finding]:
    place = seen.place
    share = max(seen.share("company") + waiting, _known(seen.remedy.value))
    running = place.per_machine * place.threads
    what = (
        f"{plural(place.per_machine, 'worker')} with {plural(place.threads, 'thread')} each are {running} threads "
        f"on {plural(place.cores, 'core')}"
        + _where(place)
        + f": without any communication a step takes {_ms(seen.typical_s)}; one worker alone takes {_ms(seen.alone_s)}"
    )
    gain, follow = _known(seen.remedy.value), ""
    if seen.remedy_threads:
        fitting = place.per_machine * seen.remedy_threads
        extent = f"{share_text(gain)} less time a step, measured" if gain >= 0.01 else "no time, measured"
        change = f"Give each worker {plural(seen.remedy_threads, 'thread')} (--threads {seen.remedy_threads}): {extent}"
        follow = f"--threads {seen.remedy_threads}"
        if fitting >= place.cores and place.workers_per_host > 1:
            change += ". One more worker can then only have the cores of another: take more hosts, not more workers"
    else:
        change = (
            f"Start no more than {plural(place.cores, 'worker')} a host: as many images/s with fewer processes and a"
        )
        change += " smaller job batch"
        if place.workers_per_host > 1:
            change += ". More hosts would help, more workers on this one cannot"
    return [
        Finding(
            kind="oversubscription",
            title=f"{running} threads share {plural(place.cores, 'core')}",
            share=share,
            gain=gain,
            what=what,
            change=change,
            follow=follow,
        )
    ]


def _machine(seen: Evidence) -> list[Finding]:
    place, share = seen.place, seen.share("company")
    if seen.company.low <= 0:
        return []  # it may be chance
    running = place.per_machine * place.threads
    title = "the workers slow each other down without communicating"
    cause = "Each has cores of its own, so they share what cores share: caches, memory bandwidth, power"
    change = (
        "No library can win this back: spread the workers over more hosts, which would gain up to "
        f"{share_text(share)}; or need less memory traffic (--set precision=bf16 where the processor has it, larger "
        "batches)"
    )
    if place.others >= CROWDED:
        title = "other processes use this machine"
        cause = f"Other processes took {share_text(place.others)} of this machine meanwhile"
        change = f"End them, or wait for them, and measure again: up to {share_text(share)} less time a step"
    elif place.workers_per_host == 1:
        title = "a worker beside others is slower, although each has a host of its own"
        cause = "The hosts differ, or they are one machine"
        change = (
            "Measure the hosts one by one (-H with one of them), and see with `hora doctor -H` what cores each has: "
            f"hosts like the first would gain up to {share_text(share)}"
        )
    elif place.physical_cores and running > place.physical_cores:
        cause = f"{running} threads share {plural(place.physical_cores, 'core')}, as hyperthreads"
    return [
        Finding(
            kind="machine",
            title=title,
            share=share,
            gain=share,
            what=f"Alone a worker takes {_ms(seen.alone_s)} a step, and {_ms(seen.typical_s)} beside "
            f"{plural(place.workers - 1, 'other')} that it does not communicate with. {cause}",
            change=change,
        )
    ]


def _small_batch(seen: Evidence) -> list[Finding]:
    place, share = seen.place, seen.share("small batch")
    whole = place.batch * place.workers
    gain = share + seen.share("moving") * (1 - 1 / place.workers)  # the same bytes for as many more images
    return [
        Finding(
            kind="small batch",
            title=f"a batch of {place.batch} computes less efficiently than one of {whole}",
            share=share,
            gain=gain,
            what=f"One worker alone takes {_ms(seen.alone_s)} for {plural(place.batch, 'image')}, which is "
            f"{share_text(share)} of a step more than that part of {plural(whole, 'image')} takes it",
            change="Keep the batch of each worker (weak scaling), and let the learning rate follow the job's "
            f"(`hora plan`): {share_text(gain)} less time for as many images",
            follow="--weak",
        )
    ]


def _pauses(seen: Evidence) -> list[Finding]:
    """Validation and checkpoints, if they were measured."""
    pauses, share = seen.pauses, seen.share("pauses")
    if pauses is None or share <= 0:
        return []
    validation, save = (part / seen.total_s for part in (pauses.validation_step_s, pauses.save_step_s))
    follow, changes, gain = "", [], 0.0
    if save >= WORTH / 2:
        rarer = 2 * pauses.save_every
        changes.append(f"Save half as often (--set save_every={rarer:g}): {share_text(save / 2)} less time")
        follow, gain = f"--set save_every={rarer:g}", save / 2
    if validation >= WORTH / 2:
        changes.append(
            f"Validate after every other epoch, or on half of the images: {share_text(validation / 2)} less time"
        )
        gain += 0.0 if follow else validation / 2
    return [
        Finding(
            kind="pauses",
            title="validation and checkpoints take the time",
            share=share,
            gain=gain,
            what=f"A validation takes {_ms(pauses.validation_s)} and a checkpoint {_ms(pauses.save_s)}; an epoch "
            f"has {plural(pauses.steps_per_epoch, 'step')}, so that is {share_text(validation)} and {share_text(save)} "
            "of the time",
            change=". ".join(changes) or "Nothing: it is little",
            follow=follow,
        )
    ]


def _above(seen: Evidence) -> Finding:
    sure = seen.efficiency
    return Finding(
        kind="above ideal",
        title="this is more than ideal, and not to be believed",
        share=0.0,
        gain=0.0,
        what=f"{plural(seen.place.workers, 'worker')} were measured at {share_text(sure.value)} of ideal "
        f"({share_text(sure.low)} to {share_text(sure.high)}), and cannot be: the one worker that they are compared "
        "with was disturbed, or had less of the machine than each of them",
        change="Measure again on a quiet machine, with more --repeats or --threads 1; do not quote this figure",
    )


def _compute(seen: Evidence, lost: float) -> Finding:
    place, rest = seen.place, max(0.0, 1 - lost)
    free = place.cores // place.per_machine
    spare = (
        f"there are cores for {plural(free, 'thread')} a worker (--threads {free}); " if free > place.threads else ""
    )
    size = f" --gradient-mb {seen.gradient_bytes / 1e6:.3g}" if math.isfinite(seen.gradient_bytes) else ""
    better, sure = seen.share("moving", "communication"), seen.efficiency
    more = "More workers help"
    if place.full and (place.hosts == 1 or place.workers_per_host > 1):
        more += ", on more hosts: the cores of " + ("these are" if place.hosts > 1 else "this one are") + " used"
    return Finding(
        kind="compute",
        title="computing takes the time",
        share=rest,
        gain=better,
        what=f"With {plural(place.workers, 'worker')} {share_text(rest)} of a step is computing; efficiency is "
        f"{share_text(sure.value)} ({share_text(sure.low)} to {share_text(sure.high)})",
        change=f"{more}. To make a step itself faster: {spare}--set precision=bf16 where the processor has it. Better "
        f"communication would gain {share_text(better)} at most. What more workers would give: `hora plan "
        f"--workers {2 * place.workers} --batch {place.batch} --step-ms {1e3 * seen.alone_s:.3g}{size} --per-host "
        f"{place.workers_per_host}`",
    )


def _ms(seconds: float) -> str:
    return time_text(1e6 * seconds)


def _known(value: float, otherwise: float = 0.0) -> float:
    return value if math.isfinite(value) else otherwise
