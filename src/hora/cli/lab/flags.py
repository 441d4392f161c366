"""Flags that the experiments of `hora lab` share, and what their texts mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from hora.cli.progress import say
from hora.errors import EnvironmentUnfit, UsageError
from hora.workloads.settings import settings

if TYPE_CHECKING:
    from rich.console import Console

    from hora.lab.records import ExperimentWriter

__all__ = ["ExperimentFlags", "experiment_flags", "numbers", "settings"]

_LABEL = "hora.lab.label"


def _keep_label(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    context.meta[_LABEL] = value


label_flag = click.option(
    "--label", metavar="TEXT", expose_value=False, callback=_keep_label, help="Name shown in lists and reports."
)


class ExperimentFlags(NamedTuple):
    """What was given with the flags that all experiments share."""

    hosts: str
    hostfile: str | None
    out: Path | None
    resume: Path | None
    runs: Path
    json_file: Path | None
    sets: tuple[str, ...] = ()

    def settings(self, workload: str) -> dict[str, Any]:
        """The values of --set."""
        return settings(workload, self.sets)

    def where(self, workers: int = 1) -> str:
        """The hosts that were given; without any, those of an allocation of several that this process is in. Refused if
        they have no room for that many workers: the largest job would fail when all others are done."""
        from hora.config import env
        from hora.launch.planning.allocation import find_allocation
        from hora.launch.planning.hosts import parse_hosts, read_hosts

        hosts, hostfile = self.hosts, self.hostfile
        if hosts and hostfile is not None:
            raise UsageError(f"-H {hosts} and --hostfile {hostfile} both say where to run. Give only one.")
        allocation = None if hosts or hostfile is not None else find_allocation(env.environ())
        if allocation is not None:
            found = allocation.hosts
        elif hosts or hostfile is not None:
            found = parse_hosts(hosts) if hosts else read_hosts(None, hostfile, None)
        else:
            return ""
        slots, listed = sum(host.slots for host in found), ",".join(f"{host.name}:{host.slots}" for host in found)
        if workers > slots:
            if allocation is not None:
                raise EnvironmentUnfit(
                    f"{workers} workers are more than this {allocation.system} allocation has tasks: {listed} has "
                    f"{slots}. {allocation.more}, or measure up to {slots} workers. Nothing was started."
                )
            raise UsageError(
                f"{workers} workers are more than the hosts have slots: {listed} has {slots}. Give the hosts more "
                f"slots, or measure up to {slots} workers."
            )
        return "" if allocation is not None and len(found) < 2 else hosts or listed

    def folder(self) -> Path | None:
        """The folder that was asked for, whichever way."""
        out, resume = self.out, self.resume
        if out is not None and resume is not None and out != resume:
            raise UsageError(f"--out {out} and --resume {resume} are two folders. Give only one.")
        if resume is not None and not _has_record(resume):
            raise UsageError(
                f"--resume {resume}: there is no experiment in it. Give its folder, or --out for a new one."
            )
        return resume or out

    @contextmanager
    def book(self, kind: str, title: str, options: dict[str, Any]) -> Iterator[ExperimentWriter]:
        """The record, with the label; says what to do next if the experiment is interrupted."""
        from hora.lab import records

        with records.experiment(kind, title, options, self.folder(), self.runs) as book:
            if label := click.get_current_context().meta.get(_LABEL):
                book.content.label = label
                book.write()
            try:
                yield book
            except KeyboardInterrupt:
                say(
                    "hora: interrupted. Finished trials are kept; continue with the same command and "
                    f"--resume {book.folder}"
                )
                raise

    def finish(self, book: ExperimentWriter, screen: Console) -> None:
        """The notes, and what --json asks for: the experiment as it stands in its folder."""
        from hora.files import write_json
        from hora.lab.show import print_notes

        print_notes(screen, [*book.notes, f"kept in {book.folder}"])
        if self.json_file is not None:
            write_json(self.json_file, book.content, "--json")


def _has_record(folder: Path) -> bool:
    """Whether it holds an experiment, or the trials of one, as the tasks of a job array leave them."""
    return (folder / "experiment.json").exists() or any(folder.glob("trials/*/outcome.json"))


def experiment_flags(*, sets: bool = True) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The flags of an ``ExperimentFlags``, which goes to a parameter ``lab``; and --label, which goes into the
    record."""
    folder = click.Path(file_okay=False, path_type=Path)
    options = [
        click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path),
                     help="Also write the results to this file."),
        click.option("--runs", type=folder, default=Path("runs"), show_default=True, metavar="DIR",
                     help="Folder of all runs."),
        click.option("--resume", type=folder, metavar="DIR",
                     help="Continue the experiment in this folder; finished trials are kept."),
        label_flag,
        click.option("--out", type=folder, metavar="DIR",
                     help="Folder of this experiment.  [default: RUNS/lab/KIND-DATE-TIME]"),
        click.option(
            "--set", "sets", multiple=True, metavar="NAME=VALUE",
            help="Option of 'hora train', such as lr=0.1; repeatable.",
        ),
        click.option("--hostfile", "-hostfile", metavar="FILE",
                     help="File with one 'host slots=N' per line, instead of -H."),
        click.option(
            "-H", "--hosts", default="", metavar="h1:2,h2:2",
            help="Hosts to run on.  [default: those of the allocation, or this host]",
        ),
    ]  # fmt: skip
    if not sets:
        del options[5]

    def add(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def command(**given: Any) -> None:
            shared = {name: given.pop(name) for name in ExperimentFlags._fields if name in given}
            function(lab=ExperimentFlags(**shared), **given)

        made: Callable[..., None] = command
        for option in options:
            made = option(made)
        return made

    return add


def numbers(text: str, flag: str) -> tuple[int, ...]:
    """Numbers with commas between, each above 0 and once.

    >>> numbers("1, 2,4", "--workers")
    (1, 2, 4)
    >>> numbers("1,x", "--workers")
    Traceback (most recent call last):
    hora.errors.UsageError: --workers 1,x: 'x' is not a number above 0. Give comma-separated numbers, such as 1,2,4.
    """
    found: dict[int, None] = {}
    for part in text.split(","):
        word = part.strip()
        if not (word.isascii() and word.isdigit() and int(word)):
            raise UsageError(
                f"{flag} {text}: {word!r} is not a number above 0. Give comma-separated numbers, such as 1,2,4."
            )
        found[int(word)] = None
    return tuple(found)
