"""What a step computes, and on what: waiting for data, crowded cores, the machine itself, small batches, pauses."""

from __future__ import annotations

import math

from hora.lab.scaling.evidence import Evidence, RunConditions, known
from hora.text import plural, share_text, time_text
from hora.timeline.verdict import WORTH, TimelineFinding

__all__ = ["CROWDED", "input_waits", "machine", "oversubscription", "pauses", "small_batch"]

CROWDED = 0.25  # of the machine, taken by others, explains that workers which do not communicate are slow


def input_waits(seen: Evidence) -> list[TimelineFinding]:
    """What all workers wait for data; if the first is a slow rank, what it waits more than the others is its own."""
    own = seen.slow_rank_share if seen.slow_rank == 0 else 0.0
    share, conditions = max(0.0, seen.share("data") - own), seen.conditions
    left = conditions.cores * (1 - conditions.others)  # by other processes
    busy = seen.cpu_share * conditions.cores >= 0.85 * min(left, conditions.per_machine * conditions.threads)
    spare = conditions.cores - conditions.per_machine * conditions.threads
    follow = ""
    if busy and spare < conditions.per_machine:
        how = (
            f"The cores are busy meanwhile ({share_text(seen.cpu_share)}): it is computing (decoding, augmentation), "
            "and loader processes need cores of their own. Make it cheaper: smaller images, data decoded before"
        )
        gain = share / 2
    elif not conditions.loads_ahead:
        how = (
            "The cores are not busy meanwhile: it waits for storage. Stage the data on a local disk (`hora data stage`)"
        )
        gain = share
    else:
        loaders = conditions.loaders + max(1, min(8, math.ceil(share / max(0.1, 1 - share))))
        how = (
            "The cores are not busy meanwhile: it waits for storage. Load ahead in processes of their own, --set "
            f"loaders={loaders}; stage the data on a local disk (`hora data stage`)"
        )
        gain = 1 - max(1 - share, share / max(1, loaders - conditions.loaders))
        follow = f"--set loaders={loaders}"
    return [
        TimelineFinding(
            kind="input",
            title="workers wait for data",
            share=share,
            gain=gain,
            what=f"{time_text(seen.data_s)} of a step of {time_text(seen.total_s)} is waiting for the next batch, "
            "on every worker, however many there are",
            change=how + f". If all of it is hidden behind computing, a step takes {share_text(gain)} less",
            follow=follow,
        )
    ]


def _where(conditions: RunConditions) -> str:
    if conditions.hosts == 1:
        return ""
    return (
        " of each host" if conditions.per_machine == conditions.workers_per_host else ", as these hosts are one machine"
    )


def oversubscription(seen: Evidence, waiting: float) -> list[TimelineFinding]:
    conditions = seen.conditions
    share = max(seen.share("contention") + waiting, known(seen.remedy.value))
    running = conditions.per_machine * conditions.threads
    what = (
        f"{plural(conditions.per_machine, 'worker')} with {plural(conditions.threads, 'thread')} each are {running} "
        f"threads on {plural(conditions.cores, 'core')}{_where(conditions)}: without any communication a step takes "
        f"{time_text(seen.typical_s)}; one worker alone takes {time_text(seen.alone_s)}"
    )
    gain, follow = known(seen.remedy.value), ""
    if seen.remedy_threads:
        fitting = conditions.per_machine * seen.remedy_threads
        extent = f"{share_text(gain)} less time a step, measured" if gain >= 0.01 else "no time, measured"
        change = f"Give each worker {plural(seen.remedy_threads, 'thread')} (--threads {seen.remedy_threads}): {extent}"
        follow = f"--threads {seen.remedy_threads}"
        if fitting >= conditions.cores and conditions.workers_per_host > 1:
            change += ". One more worker can then only have the cores of another: take more hosts, not more workers"
    else:
        change = (
            f"Start no more than {plural(conditions.cores, 'worker')} a host: as many images/s with fewer processes "
            "and a smaller job batch"
        )
        if conditions.workers_per_host > 1:
            change += ". More hosts would help, more workers on this one cannot"
    return [
        TimelineFinding(
            kind="oversubscription",
            title=f"{running} threads share {plural(conditions.cores, 'core')}",
            share=share,
            gain=gain,
            what=what,
            change=change,
            follow=follow,
        )
    ]


def machine(seen: Evidence) -> list[TimelineFinding]:
    conditions, share = seen.conditions, seen.share("contention")
    if seen.contention.low <= 0:
        return []  # it may be chance
    running = conditions.per_machine * conditions.threads
    title = "the workers slow each other down without communicating"
    cause = "Each has cores of its own, so they compete for caches, memory bandwidth and power"
    change = (
        "No library can win this back: spread the workers over more hosts, which would gain up to "
        f"{share_text(share)}; or need less memory traffic (--set precision=bf16 where the processor has it, larger "
        "batches)"
    )
    if conditions.others >= CROWDED:
        title = "other processes use this machine"
        cause = f"Other processes took {share_text(conditions.others)} of this machine meanwhile"
        change = f"End them, or wait for them, and measure again: up to {share_text(share)} less time a step"
    elif conditions.workers_per_host == 1:
        title = "each worker is slower when others run, although each has its own host"
        cause = "The hosts differ, or they are one machine"
        change = (
            "Measure the hosts one by one (-H with one of them), and see with `hora doctor -H` what cores each has: "
            f"hosts like the first would gain up to {share_text(share)}"
        )
    elif conditions.physical_cores and running > conditions.physical_cores:
        cause = f"{running} threads share {plural(conditions.physical_cores, 'core')}, as hyperthreads"
    return [
        TimelineFinding(
            kind="machine",
            title=title,
            share=share,
            gain=share,
            what=f"Alone a worker takes {time_text(seen.alone_s)} a step, and {time_text(seen.typical_s)} beside "
            f"{plural(conditions.workers - 1, 'other')} that it does not communicate with. {cause}",
            change=change,
        )
    ]


def small_batch(seen: Evidence) -> list[TimelineFinding]:
    conditions, share = seen.conditions, seen.share("small batch")
    whole = conditions.batch * conditions.workers
    gain = share + seen.share("moving") * (1 - 1 / conditions.workers)  # the same bytes for as many more images
    return [
        TimelineFinding(
            kind="small batch",
            title=f"a batch of {conditions.batch} computes less efficiently than one of {whole}",
            share=share,
            gain=gain,
            what=f"One worker alone takes {time_text(seen.alone_s)} for {plural(conditions.batch, 'image')}, which is "
            f"{share_text(share)} of a step more than that part of {plural(whole, 'image')} takes it",
            change="Keep the batch of each worker (weak scaling), and let the learning rate follow the job's "
            f"(`hora plan`): {share_text(gain)} less time for as many images",
            follow="--weak",
        )
    ]


def pauses(seen: Evidence) -> list[TimelineFinding]:
    """Validation and checkpoints, if they were measured."""
    found, share = seen.pauses, seen.share("pauses")
    if found is None or share <= 0:
        return []
    validation, save = (part / seen.total_s for part in (found.validation_step_s, found.save_step_s))
    follow, changes, gain = "", [], 0.0
    if save >= WORTH / 2:
        rarer = 2 * found.save_every
        changes.append(f"Save half as often (--set save_every={rarer:g}): {share_text(save / 2)} less time")
        follow, gain = f"--set save_every={rarer:g}", save / 2
    if validation >= WORTH / 2:
        changes.append(
            f"Validate after every other epoch, or on half of the images: {share_text(validation / 2)} less time"
        )
        gain += 0.0 if follow else validation / 2
    return [
        TimelineFinding(
            kind="pauses",
            title="validation and checkpoints take the time",
            share=share,
            gain=gain,
            what=f"A validation takes {time_text(found.validation_s)} and a checkpoint {time_text(found.save_s)}; an "
            f"epoch has {plural(found.steps_per_epoch, 'step')}, so that is {share_text(validation)} and "
            f"{share_text(save)} of the time",
            change=". ".join(changes) or "Nothing: it is little",
            follow=follow,
        )
    ]
