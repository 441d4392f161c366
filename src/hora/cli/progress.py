"""Progress, on stderr, so that stdout has the results alone."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from hora.cli.fit import fitted

__all__ = ["say", "waiting"]


def say(line: str) -> None:
    """A line, broken between words where a terminal ends. If the terminal is gone there is none from now on: what is
    measured and recorded goes on."""
    try:
        click.echo(fitted(line, sys.stderr), err=True)
    except OSError as error:
        if error.errno not in (errno.EIO, errno.EPIPE):
            raise
        gone, nowhere = os.fstat(2).st_rdev, os.open(os.devnull, os.O_WRONLY)  # a lost terminal says it is none
        for fd in (1, 2) if gone and os.fstat(1).st_rdev == gone else (2,):
            os.dup2(nowhere, fd)
        os.close(nowhere)


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
