"""What the numbers mean: the bottleneck in words, what to change, and what that would gain.

Each finding has a share, the part of the steps' time that it takes and that nothing hides, and a gain, what would be
saved by the change; gains are estimates, and say from what. The largest gain is the bottleneck, unless no share reaches
a twentieth: then it is not communication.
"""

from __future__ import annotations

import math

import msgspec

from hora.config.settings import Settings
from hora.text import micros_text, plural, rate_text, share_text, size_text
from hora.timeline.numbers import Numbers, RankTime

__all__ = ["TimelineFinding", "findings"]

WORTH = 0.05  # of the time; less is not worth anybody's while
_FUSED_BYTES = Settings().fusion_bytes  # what a batch may hold, as it is set by default


class TimelineFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One answer to "where did the time go?"."""

    kind: str  # straggler, imbalance, tiny operations, latency, bandwidth, copies, not communication
    title: str
    share: float  # of the steps' time, exposed
    gain: float  # of the steps' time
    what: str
    change: str
    rank: int | None = None
    follow: str = ""  # options of `hora lab scaling` that make the change, if options can
    tried: bool = False  # the gain was measured in a run with these options


def findings(numbers: Numbers) -> list[TimelineFinding]:
    """The bottleneck first, then whatever else is worth a change.

    >>> from hora.timeline.measure import measure
    >>> from hora.timeline.read import TimelineOperation, Track
    >>> ops = [TimelineOperation("a", "ALLREDUCE", t, {0: t, 1: t + 60}, t + 60, t + 65, nbytes=1 << 20, round=t // 100)
    ...        for t in range(0, 1000, 100)]
    >>> worst = findings(measure([Track("", 0, "Hora", operations=ops)]))[0]
    >>> worst.kind, worst.rank, round(worst.gain, 2)
    ('straggler', 1, 0.6)
    """
    own = [time for time in numbers.ranks if time.own_file]
    found = [*_waiting(numbers, own), *_moving(numbers, own)]
    found = sorted((finding for finding in found if finding.share >= WORTH), key=lambda finding: -finding.gain)
    if not found:
        found = [_not_communication(own)]
    return found


def _mean(own: list[RankTime], part: str) -> float:
    return sum(time.share(getattr(time, part)) for time in own) / len(own)


def straggler(numbers: Numbers) -> tuple[int, float] | None:
    """The rank that is waited for much more than its turn, in most steps, and the share of time it costs the others.

    What would be gained if it kept pace is what the others wait for it at least (the second slowest waits least), less
    what they would wait for any rank.
    """
    waits = dict.fromkeys(numbers.world, 0.0)
    for time in numbers.ranks:
        for rank, us in time.exposed_wait_for_us.items():
            waits[rank] += time.share(us)
    total = sum(waits.values())
    worst = max(waits, key=lambda rank: waits[rank])
    others = [time for time in numbers.ranks if time.rank != worst]
    if not total or not others or waits[worst] < (1 / len(waits) + 0.15) * total:
        return None
    if sum(time.late_steps.get(worst, 0) for time in others) < 0.6 * sum(time.steps for time in others):
        return None
    usual = (total - waits[worst]) / (len(waits) - 1) / max(1, len(numbers.ranks) - 1)
    least = min(time.share(time.exposed_wait_for_us.get(worst, 0)) for time in others)
    return worst, max(0.0, least - usual)


def _waiting(numbers: Numbers, own: list[RankTime]) -> list[TimelineFinding]:
    """Findings about waiting: for one rank, or for each other in turn."""
    if not numbers.arrivals_known or len(numbers.world) < 2:
        return []
    found, behind = [], straggler(numbers)
    uneven = max((time.share(time.exposed_wait_us) for time in numbers.ranks), default=0.0)
    if behind is not None:
        rank, gain = behind
        found.append(_late(numbers, rank, gain))
        uneven = max(0.0, uneven - gain)
    elif _many_tiny(numbers):
        uneven = max(0.0, uneven - _mean(own, "exposed_tiny_wait_us"))  # goes with the operations
    found.append(
        TimelineFinding(
            kind="imbalance",
            title="workers take turns being late",
            share=uneven,
            gain=uneven / 2,
            what=f"Workers wait for each other {share_text(uneven)} of the time, and not always for the same one: "
            "their steps take unevenly long, or there are more of them than cores",
            change="Give every worker the same amount of work (padding, bucketing by length), prefetch data, and see "
            "with `hora doctor` that each has cores of its own. The gain is that of half the waiting",
        )
    )
    return found


def _late(numbers: Numbers, rank: int, gain: float) -> TimelineFinding:
    late = next(entry for entry in numbers.late if entry.rank == rank)
    others = [time for time in numbers.ranks if time.rank != rank]
    shares = [time.share(time.exposed_wait_for_us.get(rank, 0)) for time in others]
    closest = others[shares.index(min(shares))]
    steps = ""
    if closest.steps:
        a_step = micros_text(closest.exposed_wait_for_us.get(rank, 0) / closest.steps)
        often = f"{closest.late_steps.get(rank, 0)} of {plural(closest.steps, 'step')}"
        steps = f" In {often} it is the one most waited for, {a_step} a step on average."
    return TimelineFinding(
        kind="straggler",
        title=f"rank {rank} is late",
        share=gain,
        gain=gain,
        what=f"The others wait for rank {rank} {_span(min(shares), max(shares))} of the time. It is the last at "
        f"{share_text(late.last / max(1, late.of))} of {plural(late.of, 'operation')}, then by "
        f"{micros_text(late.median_us)} in the median.{steps}",
        change=f"Look at what rank {rank} does before it submits: data loading, work that only it does (logging, "
        "validation, checkpoints), a slower or busier host. The gain is what it is waited for beyond the usual",
        rank=rank,
    )


def _span(low: float, high: float) -> str:
    return share_text(low) if share_text(low) == share_text(high) else f"{share_text(low)} to {share_text(high)}"


def _many_tiny(numbers: Numbers) -> bool:
    return numbers.fusion.per_step >= 4 and numbers.fusion.tiny > 0.5 * max(1, numbers.fusion.sized)


def _moving(numbers: Numbers, own: list[RankTime]) -> list[TimelineFinding]:
    """Bytes, operations, or what each costs whatever its size."""
    fusion, found = numbers.fusion, []
    tiny, small, copies = (_mean(own, f"exposed_{part}_us") for part in ("tiny", "small", "copy"))
    large = max(0.0, _mean(own, "exposed_us") - _mean(own, "exposed_wait_us") - copies - tiny - small)
    if _many_tiny(numbers):
        share = tiny + (_mean(own, "exposed_tiny_wait_us") if straggler(numbers) is None else 0.0)
        needed = max(1, math.ceil(fusion.step_bytes / _FUSED_BYTES))
        found.append(_tiny(numbers, share, share * max(0.0, 1 - needed / fusion.per_step)))
    else:
        small += tiny
    found.append(
        TimelineFinding(
            kind="latency",
            title="operations take long for their size",
            share=small,
            gain=small / 2,
            what=f"Carrying out batches below 1 MB takes {share_text(small)} of the time: {_per_step(numbers)}. With "
            "so few bytes it is not bandwidth that is missing",
            change="See with `hora doctor` that each worker has a core of its own, and with `hora bench allreduce` "
            "what such an operation should take here; on several hosts, look at the link's latency. The gain is that "
            "of twice the speed",
        )
    )
    rates = [kind for kind in numbers.kinds if kind.bytes_per_s is not None]
    fastest = max(rates, key=lambda kind: kind.nbytes, default=None)
    rate = f" {fastest.label or fastest.kind} moves {rate_text(fastest.bytes_per_s)}." if fastest else ""
    hidden = _mean(own, "in_flight_us") - _mean(own, "exposed_us")
    hides = f" Another {share_text(hidden)} is hidden behind computation." if hidden >= 0.01 else ""
    found.append(
        TimelineFinding(
            kind="bandwidth",
            title="moving data takes the time",
            share=large,
            gain=large / 2,
            what=f"Data moves, and nothing hides it, {share_text(large)} of the time: {_per_step(numbers)}."
            f"{rate}{hides}",
            change="Send half as much (compression=hvd.Compression.bf16) or half as often "
            "(backward_passes_per_step=2); submit gradients while the backward pass runs, so that they hide behind "
            "it; on several hosts, look at the link. The gain is that of half the bytes",
        )
    )
    found.append(
        TimelineFinding(
            kind="copies",
            title="copying into buffers takes the time",
            share=copies,
            gain=copies,
            what=f"Copying into and out of fusion and host buffers takes {share_text(copies)} of the time",
            change="Hora sums gradients where they lie in shared memory; in Horovod, a smaller "
            "HOROVOD_FUSION_THRESHOLD copies less",
        )
    )
    return found


def _tiny(numbers: Numbers, share: float, gain: float) -> TimelineFinding:
    fusion = numbers.fusion
    each = fusion.operations / max(1, fusion.batches)
    blocking = any(time.blocking for time in numbers.ranks)
    cause = "one at a time, by calls that wait for the result" if blocking else f"{each:.1f} to a batch"
    own = [time for time in numbers.ranks if time.own_file]
    each_us = share * sum(time.step_us or time.window_us for time in own) / len(own) / fusion.per_step
    below = share_text(fusion.tiny / max(1, fusion.sized))
    return TimelineFinding(
        kind="tiny operations",
        title="many tiny operations",
        share=share,
        gain=gain,
        what=f"Operations are carried out {cause}: {plural(fusion.per_step, 'batch', 'batches')} a step, "
        f"{size_text(fusion.median_bytes)} in the median, {below} of them below 64 KB. With the waiting for one "
        f"another each costs {micros_text(each_us)} on average, hardly any of it for the data: {share_text(share)} of "
        "the time",
        change="Submit them together: hvd.grouped_allreduce(tensors), or allreduce_async for all and then synchronize; "
        "HORA_FUSION_THRESHOLD must not be 0. The gain is that of as few batches as they fit in",
    )


def _per_step(numbers: Numbers) -> str:
    if 2 * numbers.fusion.sized < numbers.fusion.batches:
        return f"{plural(numbers.fusion.per_step, 'batch', 'batches')} a step, of unknown size"
    return f"{size_text(numbers.fusion.step_bytes)} a step in {plural(numbers.fusion.per_step, 'batch', 'batches')}"


def _not_communication(own: list[RankTime]) -> TimelineFinding:
    idle, exposed = _mean(own, "idle_us"), _mean(own, "exposed_us")
    return TimelineFinding(
        kind="not communication",
        title="communication is not the bottleneck",
        share=idle,
        gain=exposed,
        what=f"Nothing is in flight {share_text(idle)} of the time: the workers compute, load data or idle; a timeline "
        f"does not show which. Communication that nothing hides takes {share_text(exposed)}",
        change="Look at the input pipeline and the model first (py-spy, torch.profiler). Better communication would "
        "gain no more than that",
    )
