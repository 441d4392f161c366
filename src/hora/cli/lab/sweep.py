"""`hora lab sweep`: search batch size, learning rate and more. The work is in ``hora.lab.sweep``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hora.cli.lab.flags import ExperimentFlags, experiment_flags
from hora.cli.progress import say
from hora.errors import UsageError

if TYPE_CHECKING:
    from hora.lab.sweep.measure import SweepSetup
    from hora.lab.sweep.search import Search

__all__ = ["command"]


@click.command("sweep")
@click.argument("workload")
@click.option("--grid", metavar="SPACE", help='Values to combine, such as "batch=32,64 lr=0.1,0.2".')
@click.option("--tpe", type=click.IntRange(1), metavar="N", help="Try N points, proposed by TPE from those before.")
@click.option(
    "--range", "ranges", multiple=True, metavar="RANGE", help='For --tpe, such as "lr=0.01..1 log batch=32..256".'
)
@click.option("--metric", help="What to compare by.  [default: val_accuracy; val_loss, images_per_s if there is none]")
@click.option("--goal", type=click.Choice(["highest", "lowest"]), help="What is best.  [default: by the metric's name]")
@click.option("--epochs", type=click.FloatRange(min=0, min_open=True), help="Of every run.  [default: the workload's]")
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True, help="Of every run; may be swept too.")
@click.option("--threads", type=click.IntRange(1), help="Of each worker.  [default: its share of the cores]")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Of TPE's proposals.")
@click.option(
    "--task", type=click.IntRange(0), metavar="N", help="Only point N of --grid, from 0: a task of a job array."
)
@click.option("--keep-models", is_flag=True, help="Keep the model that each run ends with.")
@experiment_flags()
def command(
    workload: str,
    grid: str | None,
    tpe: int | None,
    ranges: tuple[str, ...],
    metric: str | None,
    goal: str | None,
    epochs: float | None,
    workers: int,
    threads: int | None,
    seed: int,
    task: int | None,
    keep_models: bool,
    lab: ExperimentFlags,
) -> None:
    """Train WORKLOAD with many configurations, and keep the table.

    Any option of 'hora train WORKLOAD' can be searched, by its name there, and the number of workers. What does not fit
    into memory, diverges or fails is a line of the table; larger batches than one that did not fit are left out. With
    --resume DIR a sweep continues where it was, whatever ended it.
    """
    from hora.lab.quality.conduct import check_data, result_text
    from hora.lab.records.files import TRIALS
    from hora.lab.show import console, fitted
    from hora.lab.sweep import show
    from hora.lab.sweep.measure import USUAL_METRICS, SweepSetup, is_highest_best, measure, trial_of
    from hora.lab.sweep.search import Grid, Tpe
    from hora.lab.sweep.space import Dimension, check_point, corners, grid_points, parse_grid, parse_ranges
    from hora.lab.trial.parallel import run_parallel
    from hora.launch.planning.hosts import parse_hosts

    fixed = lab.settings(workload)
    if epochs is not None:
        fixed["epochs"] = epochs
    name = metric or USUAL_METRICS[workload]
    highest = is_highest_best(name) if goal is None else goal == "highest"
    where = lab.where(workers)
    setup = SweepSetup(
        workload=workload, fixed=fixed, metric=name, highest=highest, workers=workers, threads=threads,
        keep_models=keep_models, hosts=where,
    )  # fmt: skip
    check_point(workload, fixed, {})
    search: Search
    space: tuple[Dimension, ...]
    if (grid is None) == (tpe is None):
        raise UsageError("what is to be searched? Give --grid, or --tpe N with --range; one of them.")
    if grid is not None:
        if ranges:
            raise UsageError("--range is for --tpe; a grid has values only. Put them into --grid, such as lr=0.1,0.2.")
        space = choices = parse_grid(workload, grid)
        for point in grid_points(choices):
            check_point(workload, fixed, point)
        search = Grid(choices)
    else:
        if not ranges:
            raise UsageError('--tpe needs at least one --range, such as --range "lr=0.01..1 log".')
        space = parse_ranges(workload, ranges)
        for point in corners(space):
            check_point(workload, fixed, point)
        search = Tpe(space, tpe or 0, highest=highest, seed=seed)
    swept = [dimension.name for dimension in space]
    if twice := sorted(set(swept) & set(fixed)):
        raise UsageError(f"{twice[0]} is fixed and searched at once. Leave it out of one of them.")
    check_data(workload, fixed)
    title = f"{workload}: sweep over {', '.join(swept)}"
    options = {
        "workload": workload, "grid": grid, "tpe": tpe, "range": list(ranges), "metric": name, "highest": highest,
        "swept": swept, "set": dict(fixed), "workers": workers, "seed": seed,
    }  # fmt: skip
    if task is not None:
        _one(setup, search, task, lab.folder())
        return
    with lab.book("sweep", title, options) as book:
        if where and isinstance(search, Grid):
            wanted = [trial_of(setup, name, point) for name, point in search.points()]
            run_parallel(wanted, book.folder / TRIALS, parse_hosts(where), say, result_text)
        measure(setup, search, book, say)
    screen = console()
    screen.print(fitted(show.table(book.rows, swept, name, title), screen, ("time", "images/s", "peak lr")))
    screen.print()
    lab.finish(book, screen)


def _one(setup: SweepSetup, search: Search, task: int, folder: Path | None) -> None:
    """Run one point where the whole sweep will find it: beside the other tasks, which do the same."""
    from hora.lab import trial
    from hora.lab.quality.conduct import result_text
    from hora.lab.records.files import TRIALS
    from hora.lab.sweep.measure import trial_of
    from hora.lab.sweep.search import Grid

    if folder is None or not isinstance(search, Grid):
        raise UsageError("--task is of a --grid whose tasks share a folder. Give both, and --out DIR.")
    points = list(search.points())
    if task >= len(points):
        raise UsageError(f"--task {task}: the grid has {len(points)} points, 0 to {len(points) - 1}. Give one of them.")
    name, point = points[task]
    outcome = trial.run(trial_of(setup, name, point), folder / TRIALS / name)
    say(f"{task + 1}/{len(points)} {name}: {result_text(outcome)}; when all are done, the table: --resume {folder}")
