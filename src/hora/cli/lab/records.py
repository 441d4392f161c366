"""`hora lab list`, `show` and `compare`: what was run, with what result. The work is in ``hora.lab.records``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hora.errors import BadData, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from hora.lab.records.files import Experiment

__all__ = ["compare_command", "list_command", "show_command"]

_JSON = click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Also write the results to this file."
)
_FOLDER = click.Path(path_type=Path)


@click.command("list")
@click.option(
    "--runs", type=click.Path(file_okay=False, path_type=Path), default=Path("runs"), show_default=True,
    metavar="DIR", help="Folder of all runs.",
)  # fmt: skip
@click.option(
    "--kind", metavar="KIND", help="Only one kind: run, throughput, scaling, quality, elastic, sweep or study."
)
@click.option("-n", "--number", type=click.IntRange(1), metavar="N", help="Only the N newest.")
@_JSON
def list_command(runs: Path, kind: str | None, number: int | None, json_file: Path | None) -> None:
    """List what was run, newest first: runs of 'hora train' below --runs, and experiments in any folder."""
    from hora.lab.records import scan, show, summary
    from hora.lab.show import console

    if not runs.is_dir():
        raise UsageError(f"there is no folder {runs}. Nothing was run here yet; for another folder, give --runs.")
    entries = [entry for entry in scan(runs) if kind in (None, entry.kind)]
    lines, problems = summary.lines_of(entries[-number:] if number else entries)
    show.print_list(console(), lines, runs)
    _finish(json_file, lines, problems)


@click.command("show")
@click.argument("folder", type=_FOLDER)
@_JSON
def show_command(folder: Path, json_file: Path | None) -> None:
    """Show a run or an experiment: configuration, environment, results; the end of its log if it failed."""
    from hora.lab.records import show
    from hora.lab.records.files import Experiment, open_any
    from hora.lab.show import console

    found = open_any(folder)
    problems = []
    try:
        if isinstance(found, Experiment):
            show.print_experiment(console(), found, folder if folder.is_dir() else folder.parent, _results(found))
        else:
            show.print_run(console(), found)
    except BadData as error:  # all else has been shown
        problems.append(str(error))
    if isinstance(found, Experiment):
        _finish(json_file, found, problems)
    else:
        outcome = None if problems else found.outcome()
        _finish(json_file, {"run": found.file, "outcome": outcome, "epochs": found.epochs()}, problems)


@click.command("compare")
@click.argument("folders", type=_FOLDER, nargs=-1, required=True)
@_JSON
def compare_command(folders: tuple[Path, ...], json_file: Path | None) -> None:
    """Show how runs, or experiments of one kind, differ in configuration and results; ratios are to the first."""
    from hora.lab.records import compare, show
    from hora.lab.records.files import RunFolder, open_any
    from hora.lab.show import console

    if len(folders) < 2:
        raise UsageError(f"{folders[0]} alone cannot be compared. Give two folders or more.")
    found, problems = [], []
    for folder in folders:
        try:
            record = open_any(folder)
            if isinstance(record, RunFolder):
                record.outcome()  # now, so that one that is incomplete is left out
            found.append((folder, record))
        except BadData as error:
            problems.append(str(error))
    if len(found) < 2:
        raise BadData("\n".join([*problems, "Fewer than two are left to compare."]))
    made = compare.compare(found)
    show.print_comparison(console(), made)
    _finish(json_file, made, problems)


def _results(found: Experiment) -> Callable[[Console], None] | None:
    """What prints the results of an experiment as the command that has made it does, if it is more than a table."""
    if found.kind == "scaling":
        from hora.lab.scaling.show import print_results as scaling

        return lambda out: scaling(out, found.rows, found.findings, str(found.options["workload"]))
    if found.kind == "throughput":
        from hora.lab.throughput.show import print_results as throughput

        return lambda out: throughput(out, found.rows, found.title, int(found.host["cores"]))
    if found.kind == "quality":
        from hora.lab.quality.show import print_results as quality

        return lambda out: quality(out, found.rows, found.findings, found.title)
    return None


def _finish(json_file: Path | None, document: Any, problems: list[str]) -> None:
    """What --json asks for; then what could not be read, which makes the exit code 2."""
    from hora.files import write_json

    if json_file is not None:
        write_json(json_file, document, "--json")
    if problems:
        raise BadData("\n".join(problems))
