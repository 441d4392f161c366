"""The evidence in words: what keeps the job from scaling, what to change, and what that would gain.

Each finding has the share of a step's time that it takes, and the gain of the change as a share of it; both measured,
unless the words say from what they are estimated. The largest share is the bottleneck, if it is 15 % or more;
otherwise the job is bound by computing, which is as it should be.
"""

from __future__ import annotations

import math

from hora.lab.bench.figures import time_text
from hora.lab.scaling.evidence import Evidence
from hora.lab.timeline.verdict import WORTH, Finding
from hora.lab.timeline.words import plural, share_text, size_text

__all__ = ["KINDS", "findings"]

KINDS = {
    "compute": "computing takes the time",
    "input": "waiting for data",
    "bandwidth": "communication, by bandwidth",
    "latency": "communication, by latency",
    "imbalance": "workers wait for each other",
    "oversubscription": "more threads than cores",
    "machine": "the machine itself is the limit",
    "small batch": "small batches compute inefficiently",
}
BOTTLENECK = 0.15  # of the time; what takes less does not keep a job from scaling
CROWDED = 0.25  # of the machine, taken by others, explains that workers which do not communicate are slow
_MOVES = {"bandwidth": "bandwidth", "copies": "bandwidth", "latency": "latency", "tiny operations": "latency"}
_LARGE_BYTES = 1 << 20  # a step, above which what a timeline does not explain counts as bandwidth


def findings(seen: Evidence) -> list[Finding]:
    """The bottleneck first, then whatever else is worth a change.

    >>> from hora.lab.scaling.evidence import Place
    >>> from hora.lab.throughput.estimate import Estimate
    >>> place = Place(workers=2, workers_per_host=2, batch=32, threads=1, cores=2)
    >>> slow = Evidence(place=place, step_s=0.1, alone_s=0.1, efficiency=Estimate(1, 0.9, 1), input=0.6, data_s=0.06)
    >>> findings(slow)[0].kind, findings(slow)[0].share
    ('input', 0.6)
    >>> clean = Evidence(place=place, step_s=0.1, alone_s=0.098, efficiency=Estimate(0.98, 0.97, 0.99))
    >>> [finding.kind for finding in findings(clean)]
    ['compute']
    """
    late = _late(seen)
    waiting, moving = _rest(seen, late)
    found = [*late, *moving, *_input(seen), *_small_batch(seen)]
    if seen.place.oversubscribed:
        found += _oversubscription(seen, waiting)
    else:
        found += [*_machine(seen), *_turns(seen, waiting)]
    worth = sorted((finding for finding in found if finding.share >= WORTH), key=lambda finding: -finding.share)
    if not worth or worth[0].share < BOTTLENECK:
        worth.insert(0, _compute(seen, sum(finding.share for finding in found)))
    return worth


# ---- what is waited for ----


def _late(seen: Evidence) -> list[Finding]:
    """One rank that is slower than the others: by itself, or only in the job, as the timeline has it."""
    in_job = next((finding for finding in seen.timeline if finding.kind == "straggler"), None)
    by_itself = seen.slow_rank_share if seen.slow_rank is not None else 0.0
    confirmed = in_job is not None and in_job.rank == seen.slow_rank
    if not confirmed and (seen.arrivals_known or by_itself < BOTTLENECK):
        by_itself = 0.0  # of any two ranks one is the slower, by chance
    most = by_itself + _known(seen.communication.value)
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
    if rank == 0 and seen.input >= WORTH:
        input_there = f" It waits for data {share_text(min(seen.input, share))} of the time."
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


def _rest(seen: Evidence, late: list[Finding]) -> tuple[float, list[Finding]]:
    """What communication costs besides one slow rank: waiting in turns, and moving, by what the timeline sees."""
    share = _known(seen.communication.value)
    if late:
        share = max(0.0, share - max(0.0, late[0].share - seen.slow_rank_share))  # what is not in the limit
    waits = next((finding.share for finding in seen.timeline if finding.kind == "imbalance"), 0.0)
    waiting = min(waits, share)
    share -= waiting
    parts = {"bandwidth": 0.0, "latency": 0.0}
    gains, said = dict(parts), dict.fromkeys(parts, "")
    for finding in seen.timeline:
        if kind := _MOVES.get(finding.kind, ""):
            parts[kind] += finding.share
            gains[kind] += finding.gain
            said[kind] = said[kind] or finding.what.rstrip(".")
    if not any(parts.values()):  # hidden, or too little to be seen: it is the bytes, or that there are steps at all
        large = seen.gradient_bytes >= _LARGE_BYTES or math.isnan(seen.gradient_bytes)
        parts["bandwidth" if large else "latency"] = 1.0
        gains["bandwidth" if large else "latency"] = 0.5
    found = []
    for kind, words in (("bandwidth", _bandwidth), ("latency", _latency)):
        if parts[kind]:
            part = share * parts[kind] / sum(parts.values())
            found.append(words(seen, part, part * gains[kind] / parts[kind], said[kind]))
    return waiting, found


def _turns(seen: Evidence, share: float) -> list[Finding]:
    return [
        Finding(
            kind="imbalance",
            title="workers take turns being late",
            share=share,
            gain=share / 2,
            what=f"Workers wait for each other {share_text(share)} of the time, and not always for the same one",
            change="Give all the same amount of work; load data ahead (--set loaders=1); see with `hora doctor` "
            "whether something else uses the cores. The gain is that of half the waiting",
        )
    ]


# ---- what is moved ----


def _bandwidth(seen: Evidence, share: float, gain: float, said: str) -> Finding:
    place, size = seen.place, seen.gradient_bytes
    bytes_text = f"{size_text(size)} of gradients a step" if math.isfinite(size) else "the gradients of a step"
    later = share / (2 - share)  # the same bytes for twice the images
    changes = []
    if place.hosts == 1 and place.transport in ("gloo", "mpi"):
        changes.append(
            f"Take --transport auto: on one host data then moves through shared memory, not by {place.transport}"
        )
    if place.compression == "none":
        changes.append(f"Send half as much, --set compression=bf16: up to {share_text(share / 2)} less time a step")
    changes.append(
        f"Take twice the batch: the same bytes for twice the images, and communication falls to {share_text(later)} of "
        f"the time, {share_text(2 / (2 - share) - 1)} more images/s"
    )
    return Finding(
        kind="bandwidth",
        title="moving gradients takes the time",
        share=share,
        gain=max(gain, share / 2 if place.compression == "none" else 0.0),
        what=_costs(seen, share, f"to move {bytes_text}") + (f". {said}" if said else ""),
        change=". ".join(changes),
    )


def _latency(seen: Evidence, share: float, gain: float, said: str) -> Finding:
    per_step = plural(seen.batches, "operation") if math.isfinite(seen.batches) else "operations"
    size = f", {size_text(seen.gradient_bytes)} in all" if math.isfinite(seen.gradient_bytes) else ""
    later = share / (2 - share)
    link = "the latency between the hosts (`hora doctor -H`), " if seen.place.hosts > 1 else ""
    return Finding(
        kind="latency",
        title="each exchange takes long, however little it moves",
        share=share,
        gain=gain,
        what=_costs(seen, share, f"for {per_step} a step{size}") + (f". {said}" if said else ""),
        change=f"Exchange less often: twice the batch brings it to {share_text(later)} of the time, "
        f"{share_text(2 / (2 - share) - 1)} more images/s, and so does --set accumulate=2 where the batch must stay. "
        f"Then look at {link}HORA_FUSION_THRESHOLD and whether each worker has a core of its own",
    )


def _costs(seen: Evidence, share: float, why: str) -> str:
    low, high = _known(seen.communication.low), _known(seen.communication.high)
    extent = share_text(_known(seen.communication.value))
    return (
        f"Of a step of {_ms(seen.step_s)}, {extent} ({share_text(low)} to {share_text(high)}) is communication: so "
        f"much less the same processes take without it. {share_text(share)} goes {why}"
    )


# ---- what is computed, and on what ----


def _input(seen: Evidence) -> list[Finding]:
    """What all workers wait for data; if the first is a slow rank, what it waits more than the others is its own."""
    own = seen.slow_rank_share if seen.slow_rank == 0 else 0.0
    share, place = max(0.0, seen.input - own), seen.place
    busy = seen.cpu_share * place.cores >= 0.85 * min(place.cores, place.workers_per_host * place.threads)
    spare = place.cores - place.workers_per_host * place.threads
    if busy and spare < place.workers_per_host:
        how = (
            f"The cores are busy meanwhile ({share_text(seen.cpu_share)}): it is computing (decoding, augmentation), "
            "and loader processes need cores of their own. Make it cheaper (smaller pictures, data decoded before), or "
            "give each worker one core more with --set loaders=1"
        )
        gain = share / 2
    else:
        loaders = place.loaders + max(1, min(8, math.ceil(share / max(0.1, 1 - share))))
        how = (
            "The cores are not busy meanwhile: it waits for storage. Load ahead in processes of their own, --set "
            f"loaders={loaders}; stage the data on a local disk (`hora data stage`)"
        )
        gain = 1 - max(1 - share, share / max(1, loaders - place.loaders))
    return [
        Finding(
            kind="input",
            title="workers wait for data",
            share=share,
            gain=gain,
            what=f"{_ms(seen.data_s)} of a step of {_ms(seen.step_s)} is waiting for the next batch, on every worker, "
            "however many there are",
            change=how + f". If all of it is hidden behind computing, a step takes {share_text(gain)} less",
        )
    ]


def _oversubscription(seen: Evidence, waiting: float) -> list[Finding]:
    place = seen.place
    share = max(_known(seen.machine.value) + waiting, _known(seen.remedy.value))
    running = place.workers_per_host * place.threads
    what = (
        f"{plural(place.workers_per_host, 'worker')} with {plural(place.threads, 'thread')} each are {running} threads "
        f"on {plural(place.cores, 'core')}"
        + (" of each host" if place.hosts > 1 else "")
        + f": without any communication a step takes {_ms(seen.typical_s)}; one worker alone takes {_ms(seen.alone_s)}"
    )
    gain = _known(seen.remedy.value)
    if seen.remedy_threads:
        fitting = place.workers_per_host * seen.remedy_threads
        extent = f"{share_text(gain)} less time a step, measured" if gain >= 0.01 else "no time, measured"
        change = f"Give each worker {plural(seen.remedy_threads, 'thread')} (--threads {seen.remedy_threads}): {extent}"
        if fitting >= place.cores:
            change += ". One more worker can then only have the cores of another: take more hosts, not more workers"
    else:
        change = (
            f"Start no more than {plural(place.cores, 'worker')} a host: as many images/s with fewer processes and a "
            "smaller job batch. More hosts would help, more workers on this one cannot"
        )
    return [
        Finding(
            kind="oversubscription",
            title=f"{running} threads share {plural(place.cores, 'core')}",
            share=share,
            gain=gain,
            what=what,
            change=change,
        )
    ]


def _machine(seen: Evidence) -> list[Finding]:
    place, share = seen.place, _known(seen.machine.value)
    running = place.workers_per_host * place.threads
    title = "the workers slow each other down without communicating"
    cause = "Each has cores of its own, so they share what cores share: caches, memory bandwidth, power"
    if place.others >= CROWDED:
        title = "other processes use this machine"
        cause = f"Other processes took {share_text(place.others)} of this machine meanwhile: measure again without them"
    elif place.workers_per_host == 1:
        cause = "Each has a host of its own, so the hosts differ"
    elif place.physical_cores and running > place.physical_cores:
        cause = f"{running} threads share {plural(place.physical_cores, 'core')}, as hyperthreads"
    return [
        Finding(
            kind="machine",
            title=title,
            share=share,
            gain=share,
            what=f"Alone a worker takes {_ms(seen.alone_s)} a step, and {_ms(seen.typical_s)} beside "
            f"{plural(place.workers - 1, 'other')} that it does not communicate with. {cause}; or something else uses "
            "them",
            change="No library can win this back: spread the workers over more hosts, which would gain up to "
            f"{share_text(share)}; or need less memory traffic (--set precision=bf16 where the processor has it, "
            "larger batches)",
        )
    ]


def _small_batch(seen: Evidence) -> list[Finding]:
    place, share = seen.place, _known(seen.small_batch.value)
    whole = place.batch * place.workers
    return [
        Finding(
            kind="small batch",
            title=f"a batch of {place.batch} computes less efficiently than one of {whole}",
            share=share,
            gain=share,
            what=f"One worker alone takes {_ms(seen.alone_s)} for {plural(place.batch, 'image')}, which is "
            f"{share_text(share)} of a step more than that part of {plural(whole, 'image')} takes it",
            change="Keep the batch of each worker (weak scaling), and let the learning rate follow the job's "
            f"(`hora plan`): {share_text(share)} less time for as many images",
        )
    ]


def _compute(seen: Evidence, lost: float) -> Finding:
    place, rest = seen.place, max(0.0, 1 - lost)
    free = place.cores // place.workers_per_host
    more = f"there are cores for {plural(free, 'thread')} a worker (--threads {free}); " if free > place.threads else ""
    size = f" --gradient-mb {seen.gradient_bytes / 1e6:.3g}" if math.isfinite(seen.gradient_bytes) else ""
    better, sure = _known(seen.communication.value), seen.efficiency
    return Finding(
        kind="compute",
        title="computing takes the time",
        share=rest,
        gain=better,
        what=f"With {plural(place.workers, 'worker')} {share_text(rest)} of a step is computing; efficiency is "
        f"{share_text(sure.value)} ({share_text(sure.low)} to {share_text(sure.high)})",
        change=f"More workers help. To make a step itself faster: {more}--set precision=bf16 where the processor has "
        f"it. Better communication would gain {share_text(better)} at most. What more hosts would give: `hora plan "
        f"--workers {2 * place.workers} --batch {place.batch} --step-ms {1e3 * seen.alone_s:.3g}{size} --per-host "
        f"{place.workers_per_host}`",
    )


def _ms(seconds: float) -> str:
    return time_text(1e6 * seconds)


def _known(value: float) -> float:
    return value if math.isfinite(value) else 0.0
