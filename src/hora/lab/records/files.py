"""Run folders and experiment folders, as they are read.

What is missing, empty or incomplete is a BadData that names the file; what is not needed is not read.
"""

from __future__ import annotations

import socket
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import psutil

from hora.errors import BadData
from hora.lab import trial
from hora.lab.trial import reason
from hora.workloads import folder as run_folder
from hora.workloads.folder import RunFile
from hora.workloads.run_record import read_lines

__all__ = ["EXPERIMENT", "TRIALS", "Experiment", "RunFolder", "open_any", "open_experiment", "open_run", "state_of"]

EXPERIMENT = "experiment.json"
TRIALS = "trials"


class Experiment(msgspec.Struct, kw_only=True):
    """What is in ``experiment.json``."""

    format: int = 1
    kind: str
    title: str
    label: str = ""  # what --label said of it
    options: dict[str, Any] = {}
    command: list[str] = []
    pid: int = 0
    started: str = ""  # ISO, UTC
    ended: str = ""
    state: str = "running"  # done, failed, interrupted
    error: str = ""
    versions: dict[str, str] = {}
    host: dict[str, Any] = {}
    git: dict[str, Any] = {}
    trials: list[str] = []  # names under trials/, in the order in which they ran
    rows: list[dict[str, Any]] = []  # the table, as it is printed
    findings: list[dict[str, Any]] = []  # kind, title, what, change, gain, rank
    notes: list[str] = []


class RunFolder:
    """A run folder. ``file`` is its run.json; the rest is read when it is asked for."""

    def __init__(self, folder: Path, file: RunFile) -> None:
        self.folder, self.file = folder, file

    @cached_property
    def _lines(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        return read_lines(self.folder)

    def steps(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl about steps."""
        return self._lines[0]

    def epochs(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl about epochs."""
        return self._lines[1]

    @cached_property
    def _outcome(self) -> trial.TrialOutcome | None:
        return trial.load(self.folder) if (self.folder / trial.FILE).exists() else None

    def outcome(self) -> trial.TrialOutcome | None:
        """What the lab measured, if the lab ran it; BadData if that is incomplete."""
        return self._outcome

    def timelines(self) -> list[Path]:
        """The timeline files, one a rank, rank 0's first."""
        return sorted(self.folder.glob("timeline*.json"), key=lambda path: (len(path.name), path.name))

    def log(self, lines: int = 20) -> list[str]:
        """The last lines that it printed, if the lab ran it."""
        return reason.tail(self.folder / trial.LOG).splitlines()[-lines:]


def open_experiment(path: Path) -> Experiment:
    """The experiment in a folder (or of an experiment.json); BadData if it is not there, empty or incomplete."""
    folder = path.parent if path.name == EXPERIMENT else path
    return run_folder.read_json(folder / EXPERIMENT, Experiment, "Give the folder of an experiment of 'hora lab'.")


def open_run(path: Path) -> RunFolder:
    """The run in a folder (or of a run.json); BadData if it is not there, empty or incomplete.

    A trial that ended before its run began has no run.json; it is opened by its outcome.
    """
    folder = path.parent if path.name == run_folder.FILE else path
    if not (folder / run_folder.FILE).exists() and (folder / trial.FILE).exists():
        return RunFolder(folder, _of_outcome(trial.load(folder)))
    return RunFolder(folder, run_folder.read(folder))


def _of_outcome(outcome: trial.TrialOutcome) -> RunFile:
    tried = outcome.trial
    return RunFile(
        workload=tried.workload,
        options=tried.options,
        plan={},
        workers=tried.workers,
        state="interrupted" if outcome.state == "interrupted" else "failed",
        error=outcome.error,
    )


def state_of(file: RunFile | Experiment) -> str:
    """Its state; "died" if it says that it is running and its process, on this host, is gone.

    >>> state_of(Experiment(kind="sweep", title="", state="done"))
    'done'
    >>> state_of(Experiment(kind="sweep", title="", pid=2**22 + 1, host={"hostname": socket.gethostname()}))
    'died'
    """
    if file.state != "running":
        return file.state
    if not file.pid or file.host.get("hostname") != socket.gethostname():
        return "running"
    return "running" if _lives(file.pid, file.started) else "died"


def _lives(pid: int, started: str) -> bool:
    """Whether there is this process, and it is not a later one that got the number."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return not started or process.create_time() <= datetime.fromisoformat(started).timestamp() + 1.0
    except psutil.Error:
        return False
    except ValueError:  # not a time
        return True


def open_any(path: Path) -> RunFolder | Experiment:
    """Whichever of the two a folder (or a file of it) holds; BadData if neither."""
    folder = path.parent if path.name in (EXPERIMENT, run_folder.FILE) else path
    if (folder / EXPERIMENT).exists():
        return open_experiment(folder)
    if (folder / run_folder.FILE).exists() or (folder / trial.FILE).exists():
        return open_run(folder)
    what = "does not exist" if not folder.exists() else "is empty" if not any(folder.iterdir()) else "holds no record"
    raise BadData(f"{folder} {what}. Give the folder of a run or an experiment; 'hora lab list' shows what there is.")
