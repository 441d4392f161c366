"""`hora timeline`: what the workers recorded, in words. The work is in ``hora.timeline``."""

from __future__ import annotations

from pathlib import Path

import click

from hora.errors import BadData

__all__ = ["timeline"]


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE…", type=click.Path(path_type=Path))
@click.option(
    "--merge",
    "merged",
    metavar="OUT",
    type=click.Path(path_type=Path),
    help="Write all ranks to one file for ui.perfetto.dev; compressed if it ends in .gz.",
)
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the numbers here.")
def timeline(files: tuple[Path, ...], merged: Path | None, json_file: Path | None) -> None:
    """Say where the time went, who is late and what to change.

    FILE is what `hora run --timeline-filename` made each worker write (timeline.json, timeline.rank1.json, …), or
    Horovod's one file. A file that cannot be used is named, and the rest is reported on; the exit code is then 2.
    """
    from rich.console import Console

    from hora.files import write_json
    from hora.timeline import merge, report, show

    made = report.make(files)
    console = Console(highlight=False)
    show.print_report(console, made.tracks, made.clocks, made.numbers, made.findings, made.notes)
    if merged is not None:
        merge.write(merged, made.tracks, made.clocks)
        console.print(f"Wrote {merged}: open it at https://ui.perfetto.dev.", markup=False, soft_wrap=True)
    if json_file is not None:
        write_json(json_file, report.as_json(made), "--json")
    if made.problems:
        raise BadData("\n".join(made.problems))
