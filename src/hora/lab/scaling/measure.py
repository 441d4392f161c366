"""The experiment: runs the trials of weak and strong scaling by turns, and makes rows and a verdict of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hora.errors import BadData
from hora.lab.records import Book
from hora.lab.scaling.evidence import Place, divide
from hora.lab.scaling.series import Series
from hora.lab.scaling.verdict import findings
from hora.lab.throughput.grid import Job, Point, turns
from hora.lab.throughput.measure import Crew, Pools, Say, methods
from hora.lab.throughput.pool import Pool, plain, ratio
from hora.lab.throughput.room import cores, physical_cores, workers_per_host
from hora.lab.timeline import report
from hora.lab.timeline.words import share_text
from hora.launch.hosts import parse_hosts
from hora.workloads import options_of

__all__ = ["measure"]

TIMELINE_STEPS = 40  # at most; a timeline of more says no more
NOISY = 0.15  # half of an interval of efficiency that is wider than this needs more runs


def measure(job: Job, wanted: Sequence[Series], book: Book, say: Say) -> None:
    """Run everything; rows, findings and notes are in the book, also of what was done when it is interrupted."""
    grid = list(dict.fromkeys(point for series in wanted for point in series.all_points))
    largest = list(dict.fromkeys(series.largest for series in wanted if series.largest.workers > 1))
    trials = list(turns(job, grid))
    crew = Crew(book, len(trials) + len(largest), say)
    book.notes[:] = [*methods(job), *_methods(wanted)]
    pools: dict[tuple[Point, bool], Pool] = {}
    for point, trial in trials:
        crew.run_into(pools, point, trial)
        book.rows = [row for series in wanted for row in _rows(series, pools)]
    brief = msgspec.structs.replace(job, steps=min(job.steps, TIMELINE_STEPS))
    timelines = {point: crew.run(brief.trial(point, 0, timeline=True)) for point in largest}
    for series in wanted:
        seen = timelines.get(series.largest)
        read = _report(Path(seen.folder), book.notes) if seen is not None and seen.done else None
        book.findings += _findings(job, series, pools, read, crew.others())
    book.notes += [*_unsure(book.rows), *crew.cautions()]


def _rows(series: Series, pools: Pools) -> list[dict[str, Any]]:
    """A row for each worker count whose turn has come."""
    base = pools.get((series.points[0], False), Pool([]))
    rows = []
    for point in series.points:
        pool = pools.get((point, False))
        if pool is None:
            continue
        limit = pools.get((point, True), pool if point.workers == 1 else Pool([]))
        speed_up = ratio(pool.speed_draws, base.speed_draws)
        efficiency = ratio(pool.speed_draws, base.speed_draws, 1 / point.workers)
        rows.append(
            {
                "mode": series.mode,
                "workers": point.workers,
                "batch": point.batch,
                "global_batch": point.workers * point.batch,
                "threads": point.threads,
                "transport": point.transport,
                "ideal_images_per_s": plain(point.workers * base.images_per_s.value),
                "limit_images_per_s": plain(limit.images_per_s.value),
                "limit_efficiency": plain(ratio(limit.speed_draws, base.speed_draws, 1 / point.workers).value),
                "share_of_limit": plain(ratio(pool.speed_draws, limit.speed_draws).value),
                "speed_up": plain(speed_up.value),
                "speed_up_low": plain(speed_up.low),
                "speed_up_high": plain(speed_up.high),
                "efficiency": plain(efficiency.value),
                "efficiency_low": plain(efficiency.low),
                "efficiency_high": plain(efficiency.high),
                **pool.facts(),
            }
        )
    return rows


def _findings(
    job: Job, series: Series, pools: Pools, read: report.Report | None, others: float
) -> list[dict[str, Any]]:
    """The verdict on the largest job; none on one worker, or if it failed."""
    point = series.largest
    if point.workers == 1:
        return []
    options = options_of(job.workload).of(job.options)
    place = Place(
        mode=series.mode,
        workers=point.workers,
        batch=point.batch,
        threads=point.threads,
        cores=cores(),
        physical_cores=physical_cores(),
        hosts=len(parse_hosts(job.hosts)) if job.hosts else 1,
        workers_per_host=workers_per_host(point.workers, job.hosts),
        transport=point.transport,
        loaders=options.loaders,
        compression=options.compression,
        others=others,
    )
    nothing = Pool([])
    seen = divide(
        place,
        job=pools.get((point, False), nothing),
        limit=pools.get((point, True), nothing),
        alone=pools.get((series.alone, False), nothing),
        whole=pools.get((series.points[0], False), nothing),
        remedy=pools.get((series.remedy, False)) if series.remedy else None,
        remedy_threads=series.remedy.threads if series.remedy else 0,
        report=read,
    )
    if seen is None:
        return []
    return [{"mode": series.mode, **msgspec.to_builtins(finding)} for finding in findings(seen)]


def _report(folder: Path, notes: list[str]) -> report.Report | None:
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
        "the verdict is on the largest job, from one worker alone, the limit, the waiting for data, and a short run "
        "with a timeline; shares are of a step's time",
    ]


def _unsure(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Cautions about figures that are known too badly."""
    found = []
    for row in rows:
        low, high = row["efficiency_low"], row["efficiency_high"]
        if low is not None and high is not None and high - low > 2 * NOISY:
            found.append(
                f"caution: efficiency with {row['workers']} workers ({row['mode']}) is only known to be between "
                f"{share_text(low)} and {share_text(high)}; more --repeats, or a quieter machine, would tell"
            )
    return found
