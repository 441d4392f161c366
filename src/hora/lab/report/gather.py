"""Reads the paths of a report: experiments with their trials, runs, timelines, benchmarks. What cannot be read is
said in ``problems``, and the rest continues."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hora.bench.plan import Result
from hora.errors import BadData
from hora.files import from_json
from hora.lab import trial as trials
from hora.lab.records import Experiment, open_experiment, open_run
from hora.lab.records.files import EXPERIMENT, TRIALS
from hora.lab.report.label import about, facts_of, labels
from hora.lab.trial import TrialOutcome
from hora.timeline import report as timeline
from hora.workloads.folder import FILE as RUN
from hora.workloads.folder import RunFile

__all__ = ["ReportInput", "ReportedExperiment", "ReportedRun", "ReportedTimeline", "gather"]

_ORDER = {kind: place for place, kind in enumerate(("study", "scaling", "throughput", "quality", "elastic", "sweep"))}
_TIMELINES = ("timeline.json", "timeline.rank*.json", "timeline.json.gz", "timeline.rank*.json.gz")


class ReportedRun(msgspec.Struct, kw_only=True):
    """One run, of the lab or of `hora train` by itself. One that died early has no ``file``."""

    name: str
    folder: Path
    file: RunFile | None = None
    outcome: TrialOutcome | None = None
    epochs: list[dict[str, Any]] = []


class ReportedExperiment(msgspec.Struct, kw_only=True):
    """An experiment and its trials. ``name`` is its title, with what distinguishes it from others of that title."""

    folder: Path
    experiment: Experiment
    runs: list[ReportedRun]
    name: str = ""

    @property
    def about(self) -> str:
        """Label, workload, framework, hosts and date, in a line."""
        return about(self.experiment)


class ReportedTimeline(msgspec.Struct, kw_only=True):
    """What a run's timelines say."""

    name: str
    report: timeline.TimelineReport


class ReportInput(msgspec.Struct, kw_only=True):
    """All that could be read, and what could not."""

    experiments: list[ReportedExperiment] = []
    runs: list[ReportedRun] = []
    spent: list[ReportedTimeline] = []
    benches: list[tuple[Path, Result]] = []
    problems: list[str] = []

    @property
    def empty(self) -> bool:
        return not (self.experiments or self.runs or self.spent or self.benches)

    def of_kind(self, kind: str) -> list[ReportedExperiment]:
        """The experiments of a kind that have a table."""
        return [each for each in self.experiments if each.experiment.kind == kind and each.experiment.rows]

    def all_runs(self) -> Iterator[ReportedRun]:
        """Those of experiments, then the others."""
        for measured in self.experiments:
            yield from measured.runs
        yield from self.runs


def gather(paths: Sequence[Path]) -> ReportInput:
    """Read all that these paths hold. Raises BadData if that is nothing."""
    found = ReportInput()
    loose: dict[Path, list[Path]] = {}  # timelines that were given by themselves, by folder
    seen: set[Path] = set()
    for path in paths:
        for place in _places(path, found):
            if place.resolve() in seen:
                continue
            seen.add(place.resolve())
            if place.name == EXPERIMENT:
                _experiment(place.parent, found)
            elif place.name == RUN:
                ran = _run(place.parent, place.parent.name, found)
                if ran is not None:
                    found.runs.append(ran)
            else:
                _file(place, loose, found)
    for folder, files in loose.items():
        _timeline(folder.name or str(folder), files, found)
    found.experiments.sort(key=lambda measured: _ORDER.get(measured.experiment.kind, len(_ORDER)))
    _name(found.experiments)
    if found.empty:
        raise BadData("\n".join(found.problems) or "nothing was given to report on.")
    return found


def _name(experiments: Sequence[ReportedExperiment]) -> None:
    """Give each a name of its own."""
    for title in dict.fromkeys(measured.experiment.title for measured in experiments):
        alike = [measured for measured in experiments if measured.experiment.title == title]
        names = labels([facts_of(measured.experiment) for measured in alike])
        if len(set(names)) < len(names):
            names = [measured.folder.name for measured in alike]
        for measured, name in zip(alike, names, strict=True):
            measured.name = f"{title} ({name})" if len(alike) > 1 else title


def _places(path: Path, found: ReportInput) -> list[Path]:
    """The files that a path stands for: experiment.json, run.json or others."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        found.problems.append(f"{path} is not there. Give folders that `hora lab` or `hora train --out` wrote.")
        return []
    inside = list(_below(path))
    if not inside:
        found.problems.append(
            f"{path} holds no run and no experiment: there is neither a {RUN} nor an {EXPERIMENT} in it. Give a folder "
            "that `hora lab` or `hora train --out` wrote."
        )
    return inside


def _below(folder: Path) -> Iterator[Path]:
    for name in (EXPERIMENT, RUN):
        if (folder / name).exists():
            yield folder / name
            return
    for inner in sorted(folder.iterdir()):
        if inner.is_dir() and not inner.is_symlink():
            yield from _below(inner)


def _experiment(folder: Path, found: ReportInput) -> None:
    try:
        experiment = open_experiment(folder)
    except BadData as error:
        found.problems.append(str(error))
        # What its trials measured is still theirs.
        for inner in sorted((folder / TRIALS).glob("*")):
            ran = _run(inner, inner.name, found)
            if ran is not None:
                found.runs.append(ran)
        return
    runs = [_run(folder / TRIALS / name, name, found) for name in experiment.trials]
    found.experiments.append(
        ReportedExperiment(folder=folder, experiment=experiment, runs=[ran for ran in runs if ran is not None])
    )


def _run(folder: Path, name: str, found: ReportInput) -> ReportedRun | None:
    """A run folder, as far as it goes."""
    ran = ReportedRun(name=name, folder=folder)
    if (folder / trials.FILE).exists():
        try:
            ran.outcome = trials.load(folder)
            ran.epochs = ran.outcome.epochs
        except BadData as error:
            found.problems.append(str(error))
    if (folder / RUN).exists() or ran.outcome is None:
        try:
            opened = open_run(folder)
            ran.file = opened.file
            ran.epochs = opened.epochs() or ran.epochs
        except BadData as error:
            found.problems.append(str(error))
    if ran.file is None and ran.outcome is None:
        return None
    files = sorted({file for pattern in _TIMELINES for file in folder.glob(pattern)})
    if files:
        workers = ran.file.workers if ran.file else ran.outcome.trial.workers if ran.outcome else 1
        missing = [rank for rank in range(workers) if not _rank_file(files, rank)]
        if missing:
            ranks = ", ".join(map(str, missing))
            found.problems.append(
                f"{folder}: the timeline of rank {ranks} is missing, of {workers} workers. What is said about "
                f"{'it' if len(missing) == 1 else 'them'} comes from the others' files."
            )
        _timeline(name, files, found)
    return ran


def _rank_file(files: Sequence[Path], rank: int) -> bool:
    wanted = "timeline.json" if rank == 0 else f"timeline.rank{rank}.json"
    return any(file.name.removesuffix(".gz") == wanted for file in files)


def _timeline(name: str, files: list[Path], found: ReportInput) -> None:
    try:
        made = timeline.make(sorted(files))
    except BadData as error:
        found.problems.append(str(error))
        return
    found.problems += made.problems
    found.spent.append(ReportedTimeline(name=name, report=made))


def _file(path: Path, loose: dict[Path, list[Path]], found: ReportInput) -> None:
    """A file that was given by itself: a benchmark's, or a timeline."""
    try:
        data = path.read_bytes()
    except OSError as error:
        found.problems.append(f"{path} cannot be read: {error.strerror}.")
        return
    if path.suffix == ".gz" or data.lstrip()[:1] == b"[":
        loose.setdefault(path.parent, []).append(path)
        return
    try:
        found.benches.append((path, from_json(data, Result)))
    except (msgspec.DecodeError, UnicodeDecodeError):
        found.problems.append(
            f"{path} is none of the files that a report is made from: a folder's {EXPERIMENT} or {RUN}, a timeline, or "
            "what `hora bench --json` wrote."
        )
