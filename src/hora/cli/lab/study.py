"""`hora lab study`: the reference study in miniature. The work is in ``hora.lab.study``."""

from __future__ import annotations

from pathlib import Path

import click

from hora.cli.lab.flags import ExperimentFlags, experiment_flags
from hora.cli.progress import say
from hora.errors import UsageError

__all__ = ["command"]

_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command("study")
@click.option("--quick", is_flag=True, help="Fewer images, one seed; for quality only 1 and 32 workers.")
@click.option(
    "--data",
    type=_FOLDER,
    metavar="DIR",
    help="Folder of MNIST.  [default: data/mnist if it exists, else generated digits]",
)
@click.option(
    "--strategies", default="hora,ddp", show_default=True, metavar="NAME,…",
    help="What averages gradients in experiments 1 to 3; those on quality use Hora.",
)  # fmt: skip
@click.option(
    "--processes", type=click.IntRange(1), metavar="N", help="Most processes at once.  [default: one per core]"
)
@experiment_flags(sets=False)
def command(
    quick: bool,
    data: Path | None,
    strategies: str,
    processes: int | None,
    lab: ExperimentFlags,
) -> None:
    """Run the reference study's nine experiments in miniature, and answer its three questions.

    Throughput is measured on as many workers as there are cores, and predicted for more; quality on up to 32 emulated
    workers. On two free cores it takes about five minutes with --quick, and 45 minutes without. Finished trials are
    kept if it is interrupted.
    """
    from hora.lab.show import console, fitted
    from hora.lab.study import show
    from hora.lab.study.measure import measure
    from hora.lab.study.scale import FULL, QUICK
    from hora.lab.throughput.cores import cores
    from hora.lab.throughput.strategies import parse
    from hora.launch.planning.hosts import parse_hosts

    source = data or (Path("data/mnist") if Path("data/mnist").is_dir() else None)
    if data is not None and not data.is_dir():
        raise UsageError(f"--data {data}: there is no such folder. Give MNIST's, or leave it out to generate digits.")
    where = lab.where()
    slots = sum(host.slots for host in parse_hosts(where)) if where else cores()
    scale, most = QUICK if quick else FULL, processes or slots
    contenders = parse(strategies)
    options = {"scale": scale.name, "data": str(source or "generated"), "processes": most, "strategies": contenders,
               "hosts": where}  # fmt: skip
    title = f"the reference study in miniature ({scale.name})"
    with lab.book("study", title, options) as book:
        measure(scale, source, most, book, say, contenders, where)
    screen = console()
    screen.print(fitted(show.speed_table(book.rows), screen, ("steady", "study's", "batch")))
    screen.print()
    screen.print(fitted(show.quality_table(book.rows), screen, ("min", "top-5", "epoch", "study's lr")))
    screen.print()
    show.print_answers(screen, book.findings)
    screen.print()
    lab.finish(book, screen)
