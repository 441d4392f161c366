"""An experiment that is under way: its folder, its line in the index, and what is known so far, written after every
trial. Killed at any moment it loses the trial that was running and nothing else."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from hora.errors import EnvironmentUnfit, UsageError
from hora.lab import trial
from hora.lab.records import index
from hora.lab.records.files import EXPERIMENT, TRIALS, Experiment, open_experiment
from hora.lab.trial import Trial, TrialOutcome
from hora.workloads import folder as run_folder

__all__ = ["ExperimentWriter", "experiment"]


class Watcher(Protocol):
    """What reports the progress of a trial (``progress.Progress``)."""

    def look(self, trial_: Trial, folder: Path, seconds: float) -> None:
        """It runs; called about once a second, and not at all if it was run before."""

    def stop(self) -> None:
        """It is over."""


class ExperimentWriter:
    """Set ``rows``, ``findings`` and ``notes`` while the experiment runs; they are written after each trial, by
    ``write()``, and at the end."""

    def __init__(self, folder: Path, content: Experiment) -> None:
        self.folder, self.content = folder, content
        self.rows: list[dict[str, Any]] = []
        self.findings: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.outcomes: dict[str, TrialOutcome] = {}  # by the trial's name
        self.progress: Watcher | None = None

    def run(self, trial_: Trial, place: str = "") -> TrialOutcome:
        """Run a trial in trials/NAME, or take what is there of an equal one; ``place`` as ``trial.run`` has it."""
        name = trial_.name
        if not name or name != Path(name).name or name.startswith("."):
            raise UsageError(f"{name!r} cannot be the name of a trial: it must do as a folder's. Leave out slashes.")
        if name in self.outcomes and self.outcomes[name].trial != trial_:
            raise UsageError(f"two trials are called {name!r}, and one would take the other's folder. Rename one.")
        if name not in self.content.trials:
            self.content.trials.append(name)
        folder, watcher = self.folder / TRIALS / name, self.progress
        try:
            look = None if watcher is None else partial(watcher.look, trial_, folder)
            outcome = trial.run(trial_, folder, look=look, place=place)
        finally:
            if watcher is not None:
                watcher.stop()
        self.outcomes[name] = outcome
        self.write()
        return outcome

    def write(self) -> None:
        """Write experiment.json, whole."""
        self.content.rows, self.content.findings, self.content.notes = self.rows, self.findings, self.notes
        path = self.folder / EXPERIMENT
        try:
            run_folder.write_json(path, self.content)
        except OSError as error:
            raise EnvironmentUnfit(
                f"{path} could not be written: {error.strerror}. The previous version is unchanged. Free some space, "
                "or give another folder with --out; continue with --resume."
            ) from error


@contextmanager
def experiment(
    kind: str,
    title: str,
    options: Mapping[str, Any],
    out: Path | None = None,
    runs: Path = Path("runs"),
    command: Sequence[str] | None = None,
) -> Iterator[ExperimentWriter]:
    """An experiment's folder (default: RUNS/lab/KIND-DATE-TIME), its line in the index, and its end: state "done";
    "interrupted" when the block ends with KeyboardInterrupt, "failed" with any other exception, which is raised again.

    A folder that has an experiment of this kind is continued. SIGTERM counts as Ctrl-C.
    """
    folder = _new_folder(runs, kind) if out is None else out
    with _alone_in(folder):
        content = _begin(folder, kind, title, options, command)
        book = ExperimentWriter(folder, content)
        book.notes = content.notes = []
        book.write()
        index.add(runs, index.IndexEntry(kind=kind, folder=str(folder.resolve()), title=title, started=content.started))
        try:
            with _sigterm_interrupts():
                yield book
            content.state = "done"
        except BaseException as error:
            content.state, content.error = run_folder.ending(error)
            raise
        finally:
            content.ended = run_folder.now()
            book.write()


def _new_folder(runs: Path, kind: str) -> Path:
    """A folder that nobody has, named after the time."""
    stem = f"{kind}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in range(1, 1000):
        folder = runs / "lab" / (stem if number == 1 else f"{stem}-{number}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            continue
        except OSError as error:
            raise EnvironmentUnfit(
                f"{folder} cannot be made: {error.strerror}. Give another folder of runs with --runs."
            ) from error
    raise EnvironmentUnfit(f"{folder} and all before it exist. Give a folder with --out.")


def _begin(
    folder: Path, kind: str, title: str, options: Mapping[str, Any], command: Sequence[str] | None
) -> Experiment:
    before = open_experiment(folder) if (folder / EXPERIMENT).exists() else None
    if before is not None and before.kind != kind:
        raise UsageError(
            f"{folder} holds a {before.kind} experiment, which a {kind} experiment would overwrite. Give another "
            "folder with --out."
        )
    return Experiment(
        kind=kind,
        title=title,
        label=before.label if before else "",
        options=dict(options),
        command=["hora", *sys.argv[1:]] if command is None else list(command),
        pid=os.getpid(),
        started=before.started if before else run_folder.now(),
        **run_folder.environment(),
        trials=before.trials if before else [],
    )


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold the folder, so that two do not run the same trials in it; the kernel lets go of it whatever happens."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise UsageError(f"{folder} cannot be used: {error.strerror}. Give another folder with --out.") from None
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another process is using the experiment in {folder}. Wait for it, or give another folder with --out."
            ) from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(fd)


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """While this lasts SIGTERM is like Ctrl-C, so that a batch system that ends us loses nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
