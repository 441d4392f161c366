"""`hora lab throughput`: options and output; the work is in ``hora.lab.throughput``."""

from __future__ import annotations

from itertools import product

import click

from hora.cli.lab.flags import ExperimentFlags, experiment_flags, numbers
from hora.cli.progress import say
from hora.errors import UsageError

__all__ = ["command"]


@click.command("throughput")
@click.argument("workload")
@click.option("--workers", default="1,2", show_default=True, metavar="N,…", help="Worker counts to measure.")
@click.option("--batch", metavar="N,…", help="Batch sizes per worker.  [default: the workload's]")
@click.option("--threads", metavar="N,…", help="Threads per worker.  [default: cores / workers]")
@click.option("--inter", metavar="N,…", help="Threads in PyTorch's inter-op pool.  [default: PyTorch's]")
@click.option(
    "--transport", default="auto", show_default=True, metavar="NAME,…", help="Transports: auto, shm, gloo, mpi."
)
@click.option(
    "--strategies", default="hora", show_default=True, metavar="NAME,…", help="Strategies to measure: hora, ddp."
)
@click.option("--steps", type=click.IntRange(10), default=60, show_default=True, metavar="N", help="Steps per run.")
@click.option(
    "--repeats", type=click.IntRange(1), default=3, show_default=True, metavar="N", help="Runs per point, in turns."
)
@experiment_flags()
def command(
    workload: str,
    workers: str,
    batch: str | None,
    threads: str | None,
    inter: str | None,
    transport: str,
    strategies: str,
    steps: int,
    repeats: int,
    lab: ExperimentFlags,
) -> None:
    """Measure the throughput of WORKLOAD, in images/s, by worker count, batch size, threads and transport.

    Every point is shown with its limit, the same processes without communication, measured in the same run.
    Throughput is that of steady steps; the result of the reference study's own formula is beside it.
    """
    from hora.lab.show import console
    from hora.lab.throughput import measure, show
    from hora.lab.throughput.cores import cores, fair_threads
    from hora.lab.throughput.grid import TRANSPORTS, GridPoint, GridSetup, points
    from hora.lab.throughput.strategies import parse

    counts = numbers(workers, "--workers")
    options, hosts = lab.settings(workload), lab.where(max(counts))
    job = GridSetup(workload=workload, steps=steps, repeats=repeats, options=options, hosts=hosts)
    batches = numbers(batch, "--batch") if batch is not None else (job.batch(),)
    names = tuple(dict.fromkeys(name.strip().lower() for name in transport.split(",")))
    if unknown := [name for name in names if name not in TRANSPORTS]:
        raise UsageError(f"--transport {transport}: there is no {unknown[0]!r}. It can be {', '.join(TRANSPORTS)}.")
    contenders, pools = parse(strategies), numbers(inter, "--inter") if inter is not None else ()
    for size, contender in product(batches, contenders):
        job.check(batch=size, max_steps=steps, strategy=contender)
    grid: list[GridPoint] = []
    for count in counts:
        each = numbers(threads, "--threads") if threads is not None else (fair_threads(count, hosts),)
        grid += points([count], batches, each, names, contenders, pools or (0,))
    given = {"workload": workload, "workers": counts, "batch": batches, "threads": threads, "transport": names,
             "strategies": contenders, "steps": steps, "repeats": repeats, "inter": pools or None, "hosts": hosts,
             "set": options}  # fmt: skip
    title = f"{workload}: throughput"
    with lab.book("throughput", title, given) as book:
        measure.measure(job, grid, book, say)
    screen = console()
    show.print_results(screen, book.rows, title, cores())
    lab.finish(book, screen)
