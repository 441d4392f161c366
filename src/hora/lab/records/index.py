"""The index: a line for every experiment ever begun, wherever its folder is.

A line is appended by one write under a lock, so any number of writers may be at it. A writer that is killed in the
middle leaves a torn line; readers skip it, and the next writer begins a line of its own. What lies below the folder of
runs is found without the index, too: runs of `hora train`, and folders that were copied there.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import msgspec

from hora.errors import BadData, EnvironmentUnfit
from hora.lab.records.files import EXPERIMENT, open_experiment, open_run
from hora.workloads import folder as run_folder
from hora.workloads.run_record import decoded

__all__ = ["FILE", "IndexEntry", "add", "scan"]

FILE = "index.jsonl"


class IndexEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A folder that is known of. ``folder`` is as it can be opened from here; in the file it is relative to the index
    if it lies below it, so that all of it can be moved."""

    kind: str  # "run", or the experiment's kind
    folder: str
    title: str = ""
    started: str = ""


def add(runs: Path, entry: IndexEntry) -> None:
    """Append a line.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as runs:
    ...     add(Path(runs), IndexEntry(kind="sweep", folder="lab/first"))
    ...     with open(Path(runs) / FILE, "a") as file:
    ...         _ = file.write('{"kind":"sweep","fol')       # killed while it wrote
    ...     add(Path(runs), IndexEntry(kind="sweep", folder="lab/second"))
    ...     [Path(entry.folder).name for entry in _lines(Path(runs))]
    ['first', 'second']
    """
    place = Path(entry.folder)
    if place.is_absolute() and place.is_relative_to(runs.resolve()):
        entry = msgspec.structs.replace(entry, folder=str(place.relative_to(runs.resolve())))
    path = runs / FILE
    try:
        runs.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)  # until it is closed
            size = os.fstat(fd).st_size
            torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
            os.write(fd, b"\n" * torn + msgspec.json.encode(entry) + b"\n")
        finally:
            os.close(fd)
    except OSError as error:
        raise EnvironmentUnfit(
            f"{path} cannot be written: {error.strerror}. Give another folder of runs with --runs."
        ) from error


def scan(runs: Path) -> list[IndexEntry]:
    """Every folder that the index has or that is found below ``runs``, oldest first. The trials of an experiment are
    part of it; a folder that is gone or cannot be read is listed all the same."""
    found = {Path(entry.folder).resolve(): entry for entry in _lines(runs)}
    for folder in _folders(runs):
        found.setdefault(folder.resolve(), _entry(folder))
    return sorted(found.values(), key=lambda entry: (entry.started, entry.folder))


def _lines(runs: Path) -> list[IndexEntry]:
    try:
        data = (runs / FILE).read_bytes()
    except OSError:
        return []
    entries = decoded(data.split(b"\n"), IndexEntry)
    return [msgspec.structs.replace(entry, folder=str(runs / entry.folder)) for entry in entries]


def _folders(runs: Path) -> list[Path]:
    found = []
    for place, below, names in os.walk(runs):
        if EXPERIMENT in names or run_folder.FILE in names:
            found.append(Path(place))
            below.clear()  # trials, workers
        below.sort()
    return found


def _entry(folder: Path) -> IndexEntry:
    """A folder that the index does not have; without a time if it cannot be read."""
    try:
        if (folder / EXPERIMENT).exists():
            made = open_experiment(folder)
            return IndexEntry(kind=made.kind, folder=str(folder), title=made.title, started=made.started)
        run = open_run(folder).file
        return IndexEntry(kind="run", folder=str(folder), title=run.workload, started=run.started)
    except BadData:
        return IndexEntry(kind="", folder=str(folder))
