"""`hora lab scaling`: options and output; the work is in ``hora.lab.scaling``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hora.cli.lab.flags import ExperimentFlags, experiment_flags, numbers
from hora.cli.progress import say

if TYPE_CHECKING:
    from hora.lab.scaling.series import Mode

__all__ = ["command"]


@click.command("scaling")
@click.argument("workload")
@click.option("--workers", default="1,2", show_default=True, metavar="N,…", help="Worker counts; 1 is always measured.")
@click.option("--weak", "chosen", flag_value="weak", help="Weak scaling: fixed batch size per worker.  [default]")
@click.option("--strong", "chosen", flag_value="strong", help="Strong scaling: fixed global batch size.")
@click.option("--both", "chosen", flag_value="both", help="Weak and strong scaling, from the same single worker.")
@click.option(
    "--batch",
    type=click.IntRange(1),
    metavar="N",
    help="Batch size per worker; with --strong, global.  [default: the workload's]",
)
@click.option(
    "--threads",
    type=click.IntRange(1),
    metavar="N",
    help="Threads per worker, for all worker counts.  [default: cores / most workers per host]",
)
@click.option(
    "--inter", type=click.IntRange(1), metavar="N", help="Threads in PyTorch's inter-op pool.  [default: PyTorch's]"
)
@click.option(
    "--transport", type=click.Choice(["auto", "shm", "gloo", "mpi"]), default="auto", show_default=True,
    help="Transport for the gradients.",
)  # fmt: skip
@click.option(
    "--strategies", default="hora", show_default=True, metavar="NAME,…", help="Strategies to measure: hora, ddp."
)
@click.option("--steps", type=click.IntRange(10), default=60, show_default=True, metavar="N", help="Steps per run.")
@click.option(
    "--repeats", type=click.IntRange(1), default=3, show_default=True, metavar="N", help="Runs per point, in turns."
)
@click.option(
    "--pauses", is_flag=True, help="Also measure validation and checkpoints, in one more run of the largest job."
)
@click.option(
    "--try/--no-try", "try_advice", default=True, show_default=True,
    help="Try the first advice in one more run, if options can apply it, and report the gain.",
)  # fmt: skip
@experiment_flags()
def command(
    workload: str,
    workers: str,
    chosen: str | None,
    batch: int | None,
    threads: int | None,
    inter: int | None,
    transport: str,
    strategies: str,
    steps: int,
    repeats: int,
    pauses: bool,
    try_advice: bool,
    lab: ExperimentFlags,
) -> None:
    """Measure how WORKLOAD scales, and report what limits it, what to change and what that would gain.

    For every worker count, the same processes are also measured without communication (the limit) and when they only
    meet once a step (in step), in turns, so that waiting and moving data are told apart. The verdict on the largest
    count also uses a short run with a timeline, and its first advice is tried.
    """
    from hora.lab.scaling import measure, show
    from hora.lab.scaling.series import series
    from hora.lab.show import console
    from hora.lab.throughput.cores import survey
    from hora.lab.throughput.grid import GridSetup
    from hora.lab.throughput.strategies import parse

    counts, contenders = numbers(workers, "--workers"), parse(strategies)
    options, hosts = lab.settings(workload), lab.where(max(counts))
    job = GridSetup(workload=workload, steps=steps, repeats=repeats, options=options, inter_threads=inter, hosts=hosts)
    batch = batch or job.batch()
    fullest_host = survey(max(counts), hosts)
    threads = threads or fullest_host.threads
    modes: tuple[Mode, ...] = (
        ("strong",) if chosen == "strong" else ("weak", "strong") if chosen == "both" else ("weak",)
    )
    wanted = [
        series(
            mode,
            counts,
            batch,
            threads,
            transport=transport,
            strategy=strategy,
            cores=fullest_host.cores,
            crowd=fullest_host.workers,
            beside=strategy != "hora" and "hora" in contenders,
        )
        for mode in modes
        for strategy in contenders
    ]
    for point in {point for each in wanted for point in each.all_points}:
        job.check(batch=point.batch, max_steps=steps, strategy=point.strategy)
    given = {"workload": workload, "workers": counts, "modes": modes, "batch": batch, "threads": threads,
             "inter": inter, "transport": transport, "strategies": contenders, "steps": steps, "repeats": repeats,
             "pauses": pauses, "try": try_advice, "hosts": hosts, "set": options}  # fmt: skip
    with lab.book("scaling", f"{workload}: scaling", given) as book:
        measure.measure(job, wanted, book, say, fullest_host, pauses=pauses, try_advice=try_advice)
    screen = console()
    show.print_results(screen, book.rows, book.findings, workload)
    lab.finish(book, screen)
