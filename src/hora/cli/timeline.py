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
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Merge all ranks into one file for ui.perfetto.dev; compressed if it ends in .gz.",
)
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Also write the results to this file."
)
def timeline(files: tuple[Path, ...], merged: Path | None, json_file: Path | None) -> None:
    """Analyse a timeline: where the time went, which rank is late and what to change.

    FILEs are what 'hora run --timeline-filename' wrote, one per rank (timeline.json, timeline.rank1.json, …), or the
    single file that Horovod wrote. Files that cannot be read are named and left out; the exit code is then 2.
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
