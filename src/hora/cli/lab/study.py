"""`hora lab study`: the reference study in miniature. The work is in ``hora.lab.study``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hora.cli.lab.flags import folder_of, kept, label_flag, say, write_json
from hora.errors import UsageError

__all__ = ["command"]

_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command("study")
@click.option("--quick", is_flag=True, help="Fewer images, one seed, and of quality only 1 and 32 workers.")
@click.option(
    "--data", type=_FOLDER, help="Folder of MNIST.  [default: data/mnist if it is there; if not, digits are generated]"
)
@click.option("--processes", type=click.IntRange(1), help="At most so many at once.  [default: one a core]")
@click.option("--out", type=_FOLDER, help="Folder of the experiment.  [default: RUNS/lab/study-DATE-TIME]")
@click.option("--resume", type=_FOLDER, help="Go on with the study in this folder: what is done is kept.")
@click.option("--runs", type=_FOLDER, default=Path("runs"), show_default=True, help="Folder of all runs.")
@label_flag
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write it here too.")
def command(
    quick: bool,
    data: Path | None,
    processes: int | None,
    out: Path | None,
    resume: Path | None,
    runs: Path,
    json_file: Path | None,
) -> None:
    """Run the reference study's nine experiments in miniature, and answer its three questions beside its tables.

    Throughput on as many workers as there are cores, more of them predicted; quality on up to 32, emulated. About five
    minutes with --quick, three quarters of an hour without, on two free cores; what is done is kept if it is stopped.
    """
    from rich.console import Console

    from hora.lab import records
    from hora.lab.study import show
    from hora.lab.study.measure import measure
    from hora.lab.study.scale import FULL, QUICK
    from hora.lab.throughput.room import cores
    from hora.lab.throughput.show import fitted, print_notes

    source = data or (Path("data/mnist") if Path("data/mnist").is_dir() else None)
    if data is not None and not data.is_dir():
        raise UsageError(f"--data {data}: there is no such folder. Give MNIST's, or leave it out to generate digits.")
    scale, most = QUICK if quick else FULL, processes or cores()
    options = {"scale": scale.name, "data": str(source or "generated"), "processes": most}
    title = f"the reference study in miniature ({scale.name})"
    with records.experiment("study", title, options, folder_of(out, resume), runs, sys.argv) as book, kept(book):
        measure(scale, source, most, book, say)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)
    console.print(fitted(show.speed_table(book.rows), console, ("steady", "study's", "batch")))
    console.print()
    console.print(fitted(show.quality_table(book.rows), console, ("min", "top-5 %", "epoch", "study's lr")))
    console.print()
    show.print_answers(console, book.findings)
    console.print()
    print_notes(console, [*book.notes, f"kept in {book.folder}"])
    write_json(json_file, book)
