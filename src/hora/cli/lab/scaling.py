"""`hora lab scaling`: options and output; the work is in ``hora.lab.scaling``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hora.cli.lab.flags import experiment_flags, folder_of, hosts_here, kept, numbers, say, settings, write_json

if TYPE_CHECKING:
    from hora.lab.scaling.series import Mode

__all__ = ["command"]


@click.command("scaling")
@click.argument("workload")
@click.option("--workers", default="1,2", show_default=True, metavar="N,…", help="Worker counts; 1 is always measured.")
@click.option("--weak", "chosen", flag_value="weak", help="The batch of each worker stays.  [default]")
@click.option("--strong", "chosen", flag_value="strong", help="The batch of the job stays, and is divided.")
@click.option("--both", "chosen", flag_value="both", help="Weak and strong, from the same worker alone.")
@click.option(
    "--batch", type=click.IntRange(1), help="Of each worker, or of the job if --strong.  [default: the workload's]"
)
@click.option(
    "--threads",
    type=click.IntRange(1),
    help="Of each worker, however many there are.  [default: cores / the most workers of a machine]",
)
@click.option("--inter", type=click.IntRange(1), help="Threads of torch's inter-op pool.  [default: torch's]")
@click.option(
    "--transport", type=click.Choice(["auto", "shm", "gloo", "mpi"]), default="auto", show_default=True,
    help="What carries gradients.",
)  # fmt: skip
@click.option("--steps", type=click.IntRange(10), default=60, show_default=True, help="Steps of a run.")
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True, help="Runs of each point, by turns.")
@click.option(
    "--pauses", is_flag=True, help="Measure validation and checkpoints too, in one more run of the largest job."
)
@click.option(
    "-H", "--hosts", default="", metavar="h1:2,h2:2", help="Hosts to run on.  [default: the allocation's, or this one]"
)
@experiment_flags
def command(
    workload: str,
    workers: str,
    chosen: str | None,
    batch: int | None,
    threads: int | None,
    inter: int | None,
    transport: str,
    steps: int,
    repeats: int,
    pauses: bool,
    hosts: str,
    sets: tuple[str, ...],
    out: Path | None,
    resume: Path | None,
    runs: Path,
    json_file: Path | None,
) -> None:
    """Measure how WORKLOAD scales, and say what limits it, what to change and what that would gain.

    Beside every worker count stand the limit, the same processes without communication, and in step, the same but
    meeting once a step: by turns in the same processes, so that waiting is told from moving. The verdict on the largest
    also uses a short run with a timeline.
    """
    from rich.console import Console

    from hora.lab import records
    from hora.lab.scaling import measure, show
    from hora.lab.scaling.series import series
    from hora.lab.throughput.grid import Job
    from hora.lab.throughput.room import survey
    from hora.lab.throughput.show import print_notes

    options, hosts = settings(workload, sets), hosts_here(hosts)
    job = Job(workload=workload, steps=steps, repeats=repeats, options=options, inter_threads=inter, hosts=hosts)
    counts = numbers(workers, "--workers")
    batch = batch or job.batch()
    room = survey(max(counts), hosts)
    threads = threads or room.threads
    modes: tuple[Mode, ...] = (
        ("strong",) if chosen == "strong" else ("weak", "strong") if chosen == "both" else ("weak",)
    )
    wanted = [
        series(mode, counts, batch, threads, transport=transport, cores=room.cores, crowd=room.workers)
        for mode in modes
    ]
    for size in {point.batch for each in wanted for point in each.all_points}:
        job.check(batch=size, max_steps=steps)
    given = {"workload": workload, "workers": counts, "modes": modes, "batch": batch, "threads": threads,
             "inter": inter, "transport": transport, "steps": steps, "repeats": repeats, "pauses": pauses,
             "hosts": hosts, "set": options}  # fmt: skip
    folder = folder_of(out, resume)
    with records.experiment("scaling", f"{workload}: scaling", given, folder, runs, sys.argv) as book, kept(book):
        measure.measure(job, wanted, book, say, room, pauses=pauses)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)
    for mode in modes:
        rows = [row for row in book.rows if row["mode"] == mode]
        console.print(show.table(rows, _title(workload, mode, threads)))
        for line in show.headlines(rows):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        if rows:
            show.print_waterfall(console, rows[-1])
        show.print_findings(console, [finding for finding in book.findings if finding["mode"] == mode])
        console.print()
    print_notes(console, [*book.notes, f"kept in {book.folder}"])
    write_json(json_file, book)


def _title(workload: str, mode: Mode, threads: int) -> str:
    """
    >>> _title("mnist", "weak", 1)
    'mnist, weak scaling, 1 thread a worker'
    """
    return f"{workload}, {mode} scaling, {threads} thread{'s' if threads > 1 else ''} a worker"
