"""`hora lab report`: one page with tables and plots of any runs. The work is in ``hora.lab.report``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hora.cli.fit import fitted
from hora.errors import BadData

__all__ = ["command"]


@click.command("report")
@click.argument("runs", nargs=-1, metavar="[RUNS]…", type=click.Path(path_type=Path))
@click.option(
    "-o", "--out", "page", type=click.Path(dir_okay=False, path_type=Path), default=Path("report.html"),
    show_default=True, help="HTML file to write.",
)  # fmt: skip
@click.option(
    "--plots", "--figures", "plots", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
    help="Folder for the plots as SVG, PNG, PDF and CSV.  [default: NAME-plots, beside the page]",
)  # fmt: skip
@click.option("--title", default="", help="Title of the page.  [default: the experiment's]")
def command(runs: tuple[Path, ...], page: Path, plots: Path | None, title: str) -> None:
    """Write all results to one page: the answer first, then plots, tables and methods.

    RUNS are folders of runs or experiments, or folders that contain them; also timelines, and files written by 'hora
    bench --json'. The default is the folder 'runs'. The page is a single file and needs no network. What cannot be
    read is named on it, and the exit code is then 2.
    """
    from hora.lab.report.write import write

    made = write(runs or (Path("runs"),), page, plots, title)
    files = f" and {len(made.plots)} files in {made.plots[0].parent}." if made.plots else "."
    for words in (*made.words, f"Wrote {made.page}{files}"):
        click.echo(fitted(words, sys.stdout))
    if made.problems:
        raise BadData("\n".join(made.problems))
