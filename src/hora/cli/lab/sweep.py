"""`hora lab sweep`: search batch size, learning rate and more. The work is in ``hora.lab.sweep``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hora.cli.lab.flags import experiment_flags, folder_of, kept, say, settings, write_json
from hora.errors import UsageError

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
@click.option("--keep-models", is_flag=True, help="Keep the model that each run ends with.")
@experiment_flags
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
    keep_models: bool,
    sets: tuple[str, ...],
    out: Path | None,
    resume: Path | None,
    runs: Path,
    json_file: Path | None,
) -> None:
    """Train WORKLOAD with many configurations, and keep the table.

    Any option of 'hora train WORKLOAD' can be searched, by its name there, and the number of workers. What does not fit
    into memory, diverges or fails is a line of the table; larger batches than one that did not fit are left out. With
    --resume DIR a sweep goes on where it was, whatever ended it.
    """
    from rich.console import Console

    from hora.lab import records
    from hora.lab.quality.conduct import check_data
    from hora.lab.sweep import show
    from hora.lab.sweep.measure import USUAL_METRICS, Setup, is_highest_best, measure
    from hora.lab.sweep.search import Grid, Search, Tpe
    from hora.lab.sweep.space import Dimension, check_point, corners, grid_points, parse_grid, parse_ranges
    from hora.lab.throughput.show import fitted, print_notes

    fixed = settings(workload, sets)
    if epochs is not None:
        fixed["epochs"] = epochs
    name = metric or USUAL_METRICS[workload]
    highest = is_highest_best(name) if goal is None else goal == "highest"
    setup = Setup(
        workload=workload, fixed=fixed, metric=name, highest=highest, workers=workers, threads=threads,
        keep_models=keep_models,
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
    folder = folder_of(out, resume)
    title = f"{workload}: sweep over {', '.join(swept)}"
    options = {
        "workload": workload, "grid": grid, "tpe": tpe, "range": list(ranges), "metric": name, "highest": highest,
        "swept": swept, "set": dict(fixed), "workers": workers, "seed": seed,
    }  # fmt: skip
    with records.experiment("sweep", title, options, folder, runs, sys.argv) as book, kept(book):
        measure(setup, search, book, say)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)
    console.print(fitted(show.table(book.rows, swept, name, title), console, ("time", "images/s", "peak lr")))
    console.print()
    print_notes(console, [*book.notes, f"kept in {book.folder}"])
    write_json(json_file, book)
