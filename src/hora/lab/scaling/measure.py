"""The experiment: runs the trials of weak and strong scaling by turns, and makes rows and a verdict of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hora.errors import BadData
from hora.lab.records import ExperimentWriter
from hora.lab.scaling import advice, waterfall
from hora.lab.scaling.computing import CROWDED
from hora.lab.scaling.evidence import Evidence, Pauses, RunConditions, divide
from hora.lab.scaling.series import Series
from hora.lab.scaling.verdict import faster, findings
from hora.lab.throughput.cores import FullestHost, cores, physical_cores, workers_per_host
from hora.lab.throughput.grid import GridPoint, GridSetup
from hora.lab.throughput.measure import Say, TrialRunner, methods
from hora.lab.throughput.pool import Pool, plain, ratio, with_ends
from hora.lab.throughput.strategies import NAMES, compared
from hora.lab.trial import SPEED_ONLY, Trial, TrialOutcome, turns
from hora.launch.planning.hosts import parse_hosts
from hora.text import share_text
from hora.timeline import report
from hora.timeline.verdict import TimelineFinding
from hora.workloads import options_of
from hora.workloads.turns import MODES

__all__ = ["measure"]

Pools = Mapping[tuple[GridPoint, str], Pool]  # by point, and what its workers did: one of MODES

PAUSE_STEPS = 10  # before a validation and a checkpoint that are measured
TIMELINE_STEPS = 40  # at most; a timeline of more says no more
NOISY = 0.15  # half of an interval of efficiency that is wider than this needs more runs


def measure(
    job: GridSetup,
    wanted: Sequence[Series],
    book: ExperimentWriter,
    say: Say,
    fullest_host: FullestHost,
    *,
    pauses: bool = False,
    try_advice: bool = True,
) -> None:
    """Run everything; rows, findings and notes are in the book, also of what was done when it is interrupted.
    ``fullest_host`` is what the largest job has. With ``pauses`` validation and checkpoints are measured too, in one
    more run of each largest job; with ``try_advice`` so is what the first advice gains, if options can follow it."""
    grid = list(dict.fromkeys(point for series in wanted for point in series.all_points))
    told = [series for series in wanted if series.strategy == "hora"]  # the verdict is on Hora; DDP stands beside it
    largest = list(dict.fromkeys(series.largest for series in told if series.largest.workers > 1))
    whole, job = job, _without_saving(job)
    trials = list(_turns(job, grid, {series.remedy for series in wanted}))
    runner = TrialRunner(book, len(trials) + len(largest) * (2 if pauses else 1), say)
    book.notes[:] = [*methods(job), *_methods(wanted)]
    pools: dict[tuple[GridPoint, str], Pool] = {}
    for point, trial in trials:
        _take(pools, point, runner.run(trial))
        book.rows = [row for series in wanted for row in _rows(job, series, pools)]
    brief = msgspec.structs.replace(job, steps=min(job.steps, TIMELINE_STEPS))
    timelines = {point: runner.run(brief.trial(point, 0, timeline=True)) for point in largest}
    paused = {point: _pauses(whole, runner.run(_pausing(whole, point))) for point in largest} if pauses else {}
    book.rows = []
    for series in wanted:
        seen = timelines.get(series.largest)
        read = _report(Path(seen.folder), book.notes) if seen is not None and seen.done else None
        extra = _Extra(read, paused.get(series.largest), runner.others(), fullest_host)
        book.rows += _by_node(_rows(job, series, pools, extra), job.hosts)
        if series in told:
            found = _findings(job, series, pools, extra, runner if try_advice else None)
            book.findings += [{"mode": series.mode, **msgspec.to_builtins(finding)} for finding in found]
    book.notes += [*compared(book.rows), *_unsure(book.rows), *runner.cautions()]


class _Extra(NamedTuple):
    """What is only known of the largest job."""

    report: report.TimelineReport | None = None
    pauses: Pauses | None = None
    others: float = 0.0
    fullest_host: FullestHost | None = None


def _turns(
    job: GridSetup, grid: Sequence[GridPoint], plain_only: Collection[GridPoint | None]
) -> Iterator[tuple[GridPoint, Trial]]:
    """The trials, in the order in which they run: all points once, then all again. Several workers take turns by
    themselves, in step and together, in one run."""
    for turn in range(job.repeats):
        for point in grid:
            if point.workers == 1 or point in plain_only:
                yield point, job.trial(point, turn)
            else:
                yield point, job.trial(point, turn, by_turns=True)


def _take(pools: dict[tuple[GridPoint, str], Pool], point: GridPoint, outcome: TrialOutcome) -> None:
    """Put a run with those before it; one by turns is three."""
    trial = outcome.trial
    if trial.by_turns:
        found = {mode: turns.of(outcome, mode) for mode in MODES}
    else:
        found = {"limit" if trial.independent else "together": outcome}
    for mode, one in found.items():
        pools[point, mode] = pools.get((point, mode), Pool([])).and_one(one)


def _without_saving(job: GridSetup) -> GridSetup:
    """The same, but it saves nothing on the way, whatever the user's own job does."""
    return msgspec.structs.replace(job, options={k: v for k, v in job.options.items() if k != "save_every"})


def _pausing(job: GridSetup, point: GridPoint) -> Trial:
    """A run that is short, but validates and saves as the user's would."""
    trial = msgspec.structs.replace(job, steps=PAUSE_STEPS).trial(point, 0)
    options = {name: value for name, value in trial.options.items() if name not in SPEED_ONLY} | dict(job.options)
    options["batch"] = point.batch
    return msgspec.structs.replace(trial, name=trial.name.replace(f"-{point.transport}-", "-pauses-"), options=options)


def _pauses(job: GridSetup, outcome: TrialOutcome) -> Pauses | None:
    """What it found; None if it does not say, or the workload has neither."""
    facts = outcome.result
    if not outcome.done or "steps_per_epoch" not in facts:
        return None
    return Pauses(
        validation_s=facts.get("validation_s", 0.0),
        save_s=facts.get("save_s", 0.0),
        save_every=options_of(job.workload).of(job.options).save_every,
        steps_per_epoch=facts["steps_per_epoch"],
    )


def _rows(job: GridSetup, series: Series, pools: Pools, extra: _Extra | None = None) -> list[dict[str, Any]]:
    """A row for each worker count whose turn has come."""
    base = pools.get((series.points[0], "together"), Pool([]))
    rows = []
    for point in series.points:
        if point.workers == 1 and series.beside:
            continue  # it stands in Hora's rows
        pool = pools.get((point, "together"))
        if pool is None:
            continue
        limit = pools.get((point, "limit"), pool if point.workers == 1 else Pool([]))
        in_step = pools.get((point, "in step"), Pool([]))
        speed_up = ratio(pool.speed_draws, base.speed_draws)
        efficiency = ratio(pool.speed_draws, base.speed_draws, 1 / point.workers)
        alone = msgspec.structs.replace(series.points[0], batch=point.batch)
        seen = _seen(job, series, point, pools, (extra if point == series.largest else None) or _Extra(), alone)
        rows.append(
            {
                "mode": series.mode,
                "workers": point.workers,
                "batch": point.batch,
                "global_batch": point.workers * point.batch,
                "threads": point.threads,
                "transport": point.transport,
                "strategy": series.strategy,
                "images_per_s": None,  # its place is here; it comes with the facts
                **with_ends("speed_up", speed_up),
                **with_ends("efficiency", efficiency),
                "ideal_images_per_s": plain(point.workers * base.images_per_s.value),
                "limit_images_per_s": plain(limit.images_per_s.value),
                "limit_efficiency": plain(ratio(limit.speed_draws, base.speed_draws, 1 / point.workers).value),
                "in_step_images_per_s": plain(in_step.images_per_s.value),
                "in_step_efficiency": plain(ratio(in_step.speed_draws, base.speed_draws, 1 / point.workers).value),
                "share_of_limit": plain(ratio(pool.speed_draws, limit.speed_draws).value),
                "above_ideal": point.workers > 1 and waterfall.above_ideal(efficiency.value),
                "slower_than_one": point.workers > 1 and speed_up.high < 1,
                "waterfall": _waterfall(seen) if seen is not None else None,
                "link": _link(seen) if seen is not None else None,
                **pool.facts(),
            }
        )
    return rows


def _by_node(rows: list[dict[str, Any]], hosts: str) -> list[dict[str, Any]]:
    """The same rows with how they compare with one node full of workers, where there are several.

    >>> found = _by_node([{"workers": 1, "images_per_s": 60.0}, {"workers": 2, "images_per_s": 100.0},
    ...                   {"workers": 4, "images_per_s": 180.0}], "h1:2,h2:2")
    >>> [(row["nodes"], row["node_speed_up"], row["node_efficiency"]) for row in found]
    [(1, None, None), (1, 1.0, 1.0), (2, 1.8, 0.9)]
    """
    nodes = [_hosts(row["workers"], hosts) for row in rows]
    if max(nodes, default=1) == 1:
        return rows
    full = max((row for row, count in zip(rows, nodes, strict=True) if count == 1), key=lambda row: row["workers"])
    for row, count in zip(rows, nodes, strict=True):
        known = row["images_per_s"] and full["images_per_s"] and row["workers"] >= full["workers"]
        times = row["images_per_s"] / full["images_per_s"] if known else None
        row |= {"nodes": count, "node_speed_up": times, "node_efficiency": times / count if times else None}
    return rows


def _waterfall(seen: Evidence) -> list[Mapping[str, Any]]:
    return waterfall.plain(seen.parts, crowded=seen.conditions.others >= CROWDED)


def _link(seen: Evidence) -> dict[str, Any] | None:
    """The link as the record has it."""
    link = seen.link
    if link is None:
        return None
    return {
        "mbit_per_s": plain(link.mbit_per_s),
        "bytes": plain(link.bytes),
        "ms": plain(1e3 * link.seconds),
        "share": plain(link.share),
        "faster": [
            {"times": times, "mbit_per_s": plain(times * link.mbit_per_s), "gain": plain(gain), "speed_up": plain(then)}
            for times, gain, then in faster(seen, link)
        ],
    }


def _seen(
    job: GridSetup, series: Series, point: GridPoint, pools: Pools, extra: _Extra, alone: GridPoint
) -> Evidence | None:
    """The evidence about a job of several workers; None of one, or if it failed."""
    if point.workers == 1:
        return None
    options = options_of(job.workload).of(job.options)
    nothing, remedy = Pool([]), series.remedy if point == series.largest else None
    conditions = RunConditions(
        mode=series.mode,
        workers=point.workers,
        batch=point.batch,
        threads=point.threads,
        cores=extra.fullest_host.cores if extra.fullest_host else cores(),
        physical_cores=physical_cores(),
        hosts=_hosts(point.workers, job.hosts),
        workers_per_host=workers_per_host(point.workers, job.hosts),
        crowd=extra.fullest_host.workers if extra.fullest_host else 0,
        transport=point.transport,
        loaders=options.loaders,
        loads_ahead=options.loads_ahead,
        accumulates="accumulate" not in options.unused,
        compression=options.compression,
        others=extra.others,
    )
    return divide(
        conditions,
        job=pools.get((point, "together"), nothing),
        limit=pools.get((point, "limit"), nothing),
        alone=pools.get((alone, "together"), nothing),
        whole=pools.get((series.points[0], "together"), nothing),
        in_step=pools.get((point, "in step"), nothing),
        remedy=pools.get((remedy, "together")) if remedy else None,
        remedy_threads=remedy.threads if remedy else 0,
        pauses=extra.pauses,
        report=extra.report,
    )


def _hosts(workers: int, hosts: str) -> int:
    """The number of hosts of that many workers, if hosts are filled in order.

    >>> _hosts(2, ""), _hosts(2, "h1:2,h2:2"), _hosts(3, "h1:2,h2:2")
    (1, 1, 2)
    """
    left, used = workers, 0
    for host in parse_hosts(hosts) if hosts else ():
        used += left > 0
        left -= host.slots
    return max(1, used)


def _findings(
    job: GridSetup, series: Series, pools: Pools, extra: _Extra, runner: TrialRunner | None
) -> list[TimelineFinding]:
    """The verdict on the largest job; none on one worker, or if it failed. A ``runner`` tries the first advice."""
    seen = _seen(job, series, series.largest, pools, extra, series.alone)
    if seen is None:
        return []
    found = findings(seen)
    if runner is not None and advice.worth_trying(found):
        outcome = runner.run(advice.trial_of(job, series.largest, found[0].follow, series.points[0].batch))
        after = Pool([turns.of(outcome, "together")])
        found[0] = advice.told(found[0], seen, pools[series.largest, "together"], after)
    return found


def _report(folder: Path, notes: list[str]) -> report.TimelineReport | None:
    """What the timeline says; a note if it says nothing."""
    try:
        return report.make(sorted(folder.glob("timeline*.json")))
    except BadData as error:
        notes.append(f"the timeline could not be used, and communication is judged without it: {error}")
        return None


def _methods(wanted: Sequence[Series]) -> list[str]:
    modes = {series.mode for series in wanted}
    said = []
    if "weak" in modes:
        said.append("weak scaling: every worker's batch stays; ideal is as many times one worker's images/s")
    if "strong" in modes:
        said.append("strong scaling: the job's batch stays and is divided; ideal is as in weak scaling")
    return [
        *said,
        "in step: the same processes, each training alone but meeting the others once a step with four bytes; limit, "
        "in step and the job take turns in the same processes, in blocks of steps",
        "the verdict is on the largest job, from one worker alone, the limit, in step, the waiting for data, and a "
        "short run with a timeline; shares are of a step's time",
    ]


def _unsure(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Cautions about figures that are known too badly."""
    found = [
        f"caution: {share_text(row['efficiency'])} of ideal with {row['workers']} workers ({_who(row)}) is "
        "impossible; do not trust it: one worker was disturbed, or had less of the machine; measure again, with more "
        "--repeats or --threads 1"
        for row in rows
        if row["above_ideal"]
    ]
    for row in rows:
        low, high = row["efficiency_low"], row["efficiency_high"]
        if low is not None and high is not None and high - low > 2 * NOISY:
            found.append(
                f"caution: efficiency with {row['workers']} workers ({_who(row)}) is only known to be between "
                f"{share_text(low)} and {share_text(high)}; more --repeats, or a quieter machine, would help"
            )
    return found


def _who(row: Mapping[str, Any]) -> str:
    """Which series a row is of, where there may be one of Hora and one of DDP."""
    other = row.get("strategy", "hora") != "hora"
    return f"{NAMES[row['strategy']]}, {row['mode']}" if other else str(row["mode"])
