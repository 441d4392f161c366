"""Flags that the experiments of `hora lab` share, and what their texts mean."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

import click

from hora.errors import UsageError
from hora.workloads import WORKLOADS, options_of

if TYPE_CHECKING:
    from hora.lab.records import Book

__all__ = [
    "experiment_flags",
    "folder_of",
    "hosts_here",
    "kept",
    "label_flag",
    "numbers",
    "say",
    "settings",
    "waiting",
    "write_json",
]

_LABEL = "hora.lab.label"
F = TypeVar("F", bound=Callable[..., Any])


def _keep_label(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    context.meta[_LABEL] = value


label_flag = click.option(
    "--label", metavar="TEXT", expose_value=False, callback=_keep_label, help="A name of yours, for list and report."
)


def experiment_flags(function: F) -> F:
    """--set, --out, --resume, --runs and --json, which go to parameters of these names (``sets``, ``json_file``);
    --label, which goes into the record (``kept``)."""
    folder = click.Path(file_okay=False, path_type=Path)
    for option in (
        click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write it here too."),
        click.option("--runs", type=folder, default=Path("runs"), show_default=True, help="Folder of all runs."),
        click.option("--resume", type=folder, help="Go on with the experiment in this folder: what is done is kept."),
        label_flag,
        click.option("--out", type=folder, help="Folder of the experiment.  [default: RUNS/lab/KIND-DATE-TIME]"),
        click.option(
            "--set", "sets", multiple=True, metavar="NAME=VALUE", help="Any option of 'hora train', by its name there."
        ),
    ):
        function = option(function)
    return function


def folder_of(out: Path | None, resume: Path | None) -> Path | None:
    """The folder that was asked for, whichever way."""
    if out is not None and resume is not None and out != resume:
        raise UsageError(f"--out {out} and --resume {resume} are two folders. Give one of them.")
    if resume is not None and not (resume / "experiment.json").exists():
        raise UsageError(f"--resume {resume}: there is no experiment in it. Give its folder, or --out for a new one.")
    return resume or out


def hosts_here(hosts: str) -> str:
    """The hosts that were given; without any, those of an allocation of several that this process is in."""
    from hora.config import env
    from hora.launch.allocation import find_allocation

    allocation = None if hosts else find_allocation(env.environ())
    if allocation is None or len(allocation.hosts) < 2:
        return hosts
    return ",".join(f"{host.name}:{host.slots}" for host in allocation.hosts)


def numbers(text: str, flag: str) -> tuple[int, ...]:
    """Numbers with commas between, each above 0 and once.

    >>> numbers("1, 2,4", "--workers")
    (1, 2, 4)
    >>> numbers("1,x", "--workers")
    Traceback (most recent call last):
    hora.errors.UsageError: --workers 1,x: 'x' is not a number above 0. Give numbers with commas between, such as 1,2,4.
    """
    found: dict[int, None] = {}
    for part in text.split(","):
        word = part.strip()
        if not (word.isascii() and word.isdigit() and int(word)):
            raise UsageError(
                f"{flag} {text}: {word!r} is not a number above 0. Give numbers with commas between, such as 1,2,4."
            )
        found[int(word)] = None
    return tuple(found)


def settings(workload: str, sets: Sequence[str]) -> dict[str, Any]:
    """What --set gives, by field name, with the types that the workload's options have.

    >>> settings("mnist", ["lr=0.01", "save-every=0", "overwrite=true"])
    {'lr': 0.01, 'save_every': 0.0, 'overwrite': True}
    >>> settings("mnist", ["speed=9"])
    Traceback (most recent call last):
    hora.errors.UsageError: --set speed=9: mnist has no option 'speed'. See 'hora train mnist --help'.
    """
    import msgspec

    if workload not in WORKLOADS:
        raise UsageError(f"there is no workload {workload!r}. It can be {', '.join(WORKLOADS)}.")
    hints = get_type_hints(options_of(workload), include_extras=True)
    fields = {field.name for field in msgspec.structs.fields(options_of(workload))}
    found: dict[str, Any] = {}
    for text in sets:
        word, equals, value = text.partition("=")
        name = word.strip().lstrip("-").replace("-", "_")
        if not equals:
            raise UsageError(f"--set {text}: there is no value in it. Write NAME=VALUE, such as --set lr=0.1.")
        if name not in fields:
            raise UsageError(f"--set {text}: {workload} has no option {word!r}. See 'hora train {workload} --help'.")
        try:
            found[name] = msgspec.convert(value, hints[name], strict=False)
        except msgspec.ValidationError as error:
            raise UsageError(f"--set {text}: {error}. See 'hora train {workload} --help'.") from None
    return found


@contextmanager
def kept(book: Book) -> Iterator[None]:
    """Keeps the label in the record, and says what to do next if the experiment is interrupted."""
    if label := click.get_current_context().meta.get(_LABEL):
        book.content.label = label
        book.write()
    try:
        yield
    except KeyboardInterrupt:
        say(f"hora: interrupted. What is done is kept; go on with the same command and --resume {book.folder}")
        raise


def say(line: str) -> None:
    """Progress, on stderr, so that stdout has the table alone."""
    click.echo(line, err=True)


@contextmanager
def waiting() -> Iterator[Callable[[str], None]]:
    """What is done now, for something that takes long: on a terminal a line in its place, with the time since it began;
    elsewhere a line each."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, highlight=False)
    if not sys.stderr.isatty() or console.is_dumb_terminal:
        yield say
        return
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as drawn:
        task = drawn.add_task("", total=None)
        yield lambda line: drawn.update(task, description=line)


def write_json(file: Path | None, book: Book) -> None:
    """What --json asks for: the experiment as it stands in its folder."""
    from hora.checkpoint import whole

    if file is not None:
        whole.write_json(file, book.content, "--json")
