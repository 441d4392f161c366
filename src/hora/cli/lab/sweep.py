"""`hora lab sweep`: search batch size, learning rate and more. The work is in ``hora.lab.sweep``."""

from __future__ import annotations

from functools import partial
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
@click.option(
    "--tpe", type=click.IntRange(1), metavar="N", help="Try N points, each proposed by TPE from the results so far."
)
@click.option(
    "--range",
    "ranges",
    multiple=True,
    metavar="RANGE",
    help='Ranges for --tpe, such as "lr=0.01..1 log batch=32..256".',
)
@click.option(
    "--metric", metavar="NAME", help="Metric to compare by.  [default: val_accuracy, or else val_loss or images_per_s]"
)
@click.option(
    "--goal", type=click.Choice(["highest", "lowest"]), help="Which value is best.  [default: by the metric's name]"
)
@click.option(
    "--epochs",
    type=click.FloatRange(min=0, min_open=True),
    metavar="N",
    help="Epochs per run.  [default: the workload's]",
)
@click.option(
    "--workers", type=click.IntRange(1), default=1, show_default=True, metavar="N",
    help="Workers per run; can be searched too.",
)  # fmt: skip
@click.option(
    "--threads", type=click.IntRange(1), metavar="N", help="Threads per worker.  [default: its share of the cores]"
)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, metavar="N", help="Seed of TPE.")
@click.option(
    "--task",
    type=click.IntRange(0),
    metavar="N",
    help="Run only point N of --grid, counted from 0, as a task of a job array.",
)
@click.option("--keep-models", is_flag=True, help="Keep the final model of each run.")
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
    """Train WORKLOAD with many configurations, and show the results in a table.

    Any option of 'hora train WORKLOAD' can be searched, under its name there, and so can the number of workers. Runs
    that do not fit into memory, diverge or fail have a line in the table; batch sizes above one that did not fit are
    skipped. With --resume DIR a sweep continues where it stopped, whatever the reason.
    """
    from hora.lab.quality.conduct import check_data
    from hora.lab.records.files import TRIALS
    from hora.lab.show import console, fitted
    from hora.lab.sweep import show
    from hora.lab.sweep.measure import SweepSetup, is_highest_best, measure, outcome_text, trial_of
    from hora.lab.sweep.search import Grid, Tpe
    from hora.lab.sweep.space import Dimension, check_point, corners, grid_points, parse_grid, parse_ranges
    from hora.lab.trial.parallel import run_parallel
    from hora.launch.planning.hosts import parse_hosts
    from hora.workloads import options_of

    fixed = lab.settings(workload)
    if epochs is not None:
        fixed["epochs"] = epochs
    name = metric or options_of(workload).usual_metric
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
        raise UsageError("what is to be searched? Give one of them: --grid, or --tpe N with --range.")
    if grid is not None:
        if ranges:
            raise UsageError(
                "--range is for --tpe; a grid takes values only. Put them into --grid, such as lr=0.1,0.2."
            )
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
        raise UsageError(f"{twice[0]} is fixed and searched at the same time. Leave it out of one of them.")
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
            run_parallel(wanted, book.folder / TRIALS, parse_hosts(where), say, partial(outcome_text, setup))
        measure(setup, search, book, say)
    screen = console()
    screen.print(fitted(show.table(book.rows, swept, name, title), screen, ("time", "images/s", "peak lr")))
    screen.print()
    lab.finish(book, screen)


def _one(setup: SweepSetup, search: Search, task: int, folder: Path | None) -> None:
    """Run one point where the whole sweep will find it: beside the other tasks, which do the same."""
    from hora.lab import trial
    from hora.lab.records.files import TRIALS
    from hora.lab.sweep.measure import outcome_text, trial_of
    from hora.lab.sweep.search import Grid

    if folder is None or not isinstance(search, Grid):
        raise UsageError(
            "--task runs one point of a --grid, whose tasks share a folder. Give --grid and --out DIR as well."
        )
    points = list(search.points())
    if task >= len(points):
        raise UsageError(f"--task {task}: the grid has {len(points)} points, 0 to {len(points) - 1}. Give one of them.")
    name, point = points[task]
    outcome = trial.run(trial_of(setup, name, point), folder / TRIALS / name, place=setup.hosts)
    said = outcome_text(setup, outcome)
    say(f"{task + 1}/{len(points)} {name}: {said}; when all are done, --resume {folder} shows the table")
