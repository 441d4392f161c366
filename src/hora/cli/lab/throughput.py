"""`hora lab throughput`: options and output; the work is in ``hora.lab.throughput``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hora.cli.lab.flags import experiment_flags, folder_of, hosts_here, kept, numbers, say, settings, write_json
from hora.errors import UsageError

__all__ = ["command"]


@click.command("throughput")
@click.argument("workload")
@click.option("--workers", default="1,2", show_default=True, metavar="N,…", help="Worker counts.")
@click.option("--batch", metavar="N,…", help="Batches of each worker.  [default: the workload's]")
@click.option("--threads", metavar="N,…", help="Threads of each worker.  [default: cores / workers]")
@click.option("--inter", type=click.IntRange(1), help="Threads of torch's inter-op pool.  [default: torch's]")
@click.option("--transport", default="auto", show_default=True, metavar="NAME,…", help="auto, shm, gloo, mpi.")
@click.option("--steps", type=click.IntRange(10), default=60, show_default=True, help="Steps of a run.")
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True, help="Runs of each point, by turns.")
@click.option(
    "-H", "--hosts", default="", metavar="h1:2,h2:2", help="Hosts to run on.  [default: the allocation's, or this one]"
)
@experiment_flags
def command(
    workload: str,
    workers: str,
    batch: str | None,
    threads: str | None,
    inter: int | None,
    transport: str,
    steps: int,
    repeats: int,
    hosts: str,
    sets: tuple[str, ...],
    out: Path | None,
    resume: Path | None,
    runs: Path,
    json_file: Path | None,
) -> None:
    """Measure images/s of WORKLOAD over worker counts, batch sizes, threads and transports.

    Every point stands beside its limit, the same processes without communication, measured in the same run. Figures
    are of steady steps; the reference study's own formula is beside them.
    """
    from rich.console import Console

    from hora.lab import records
    from hora.lab.throughput import measure, show
    from hora.lab.throughput.grid import TRANSPORTS, Job, Point, points
    from hora.lab.throughput.room import fair_threads

    options, hosts = settings(workload, sets), hosts_here(hosts)
    job = Job(workload=workload, steps=steps, repeats=repeats, options=options, inter_threads=inter, hosts=hosts)
    counts = numbers(workers, "--workers")
    batches = numbers(batch, "--batch") if batch is not None else (job.batch(),)
    names = tuple(dict.fromkeys(name.strip().lower() for name in transport.split(",")))
    if unknown := [name for name in names if name not in TRANSPORTS]:
        raise UsageError(f"--transport {transport}: there is no {unknown[0]!r}. It can be {', '.join(TRANSPORTS)}.")
    for size in batches:
        job.check(batch=size, max_steps=steps)
    grid: list[Point] = []
    for count in counts:
        each = numbers(threads, "--threads") if threads is not None else (fair_threads(count, hosts),)
        grid += points([count], batches, each, names)
    given = {"workload": workload, "workers": counts, "batch": batches, "threads": threads, "transport": names,
             "steps": steps, "repeats": repeats, "inter": inter, "hosts": hosts, "set": options}  # fmt: skip
    title = f"{workload}: throughput"
    folder = folder_of(out, resume)
    with records.experiment("throughput", title, given, folder, runs, sys.argv) as book, kept(book):
        measure.measure(job, grid, book, say)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)
    console.print(show.fitted(show.table(book.rows, title), console, show.EXPENDABLE))
    show.print_notes(console, [*book.notes, f"kept in {book.folder}"])
    write_json(json_file, book)
