"""One line about each record: what `hora lab list` shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from hora.errors import BadData
from hora.lab.records.files import Experiment, Run, open_any, state_of
from hora.lab.records.index import Entry
from hora.lab.records.words import best_of, heading, value_text, worth

__all__ = ["Line", "lines_of"]


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A run or an experiment in short."""

    started: str
    kind: str
    workload: str = ""
    workers: str = ""
    state: str
    result: str = ""
    folder: str


def lines_of(entries: Sequence[Entry]) -> tuple[list[Line], list[str]]:
    """A line for each entry, newest first, and what is wrong with those that cannot be read."""
    lines, problems = [], []
    for entry in reversed(entries):
        folder = Path(entry.folder)
        try:
            if not folder.exists():
                lines.append(_without(entry, "gone"))
            else:
                lines.append(_line(folder, open_any(folder)))
        except BadData as error:
            lines.append(_without(entry, "not readable"))
            problems.append(str(error))
    return lines, problems


def _without(entry: Entry, state: str) -> Line:
    return Line(started=entry.started, kind=entry.kind, state=state, folder=entry.folder)


def _line(folder: Path, found: Run | Experiment) -> Line:
    if isinstance(found, Experiment):
        return Line(
            started=found.started,
            kind=found.kind,
            workload=value_text("workload", found.options.get("workload")),
            workers=_span([row.get("workers") for row in found.rows]),
            state=state_of(found),
            result=_result_of_rows(found),
            folder=str(folder),
        )
    file = found.file
    return Line(
        started=file.started,
        kind="run",
        workload=file.workload,
        workers=f"{file.emulated_workers} on {file.workers}" if file.emulated_workers else str(file.workers),
        state=state_of(file),
        result=_result(file.result) or _progress(found),
        folder=str(folder),
    )


def _result(facts: dict[str, Any]) -> str:
    """What matters most."""
    name = best_of(facts)
    return _named(name, facts[name]) if name else ""


def _named(name: str, value: Any) -> str:
    """
    >>> _named("images_per_s", 812.0), _named("best_val_accuracy", 0.9)
    ('812 images/s', 'accuracy 90.00 %')
    """
    text, word = value_text(name, value), heading(name).removeprefix("best ").removeprefix("val ")
    return f"{text} {word}" if word.endswith("/s") else f"{word} {text}"


def _progress(run: Run) -> str:
    return f"after step {run.steps()[-1].get('step')}" if run.steps() else ""


def _result_of_rows(found: Experiment) -> str:
    trials = f"{len(found.trials)} trial{'' if len(found.trials) == 1 else 's'}"
    names = [name for row in found.rows if (name := best_of(row))]
    if not names:
        return trials
    best = max(
        (row for row in found.rows if row.get(names[0]) is not None), key=lambda row: worth(names[0], row[names[0]])
    )
    return _named(names[0], best[names[0]])


def _span(numbers: Sequence[Any]) -> str:
    """
    >>> _span([1, 2, 4]), _span([2, 2]), _span([None])
    ('1-4', '2', '')
    """
    known = sorted({number for number in numbers if isinstance(number, int)})
    return "" if not known else str(known[0]) if len(known) == 1 else f"{known[0]}-{known[-1]}"
