"""One line about each record: what `hora lab list` shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hora.errors import BadData
from hora.lab.columns import column, value_text
from hora.lab.records.files import Experiment, RunFolder, open_any, state_of
from hora.lab.records.index import IndexEntry
from hora.lab.records.words import best_of, worth

__all__ = ["RecordSummary", "lines_of"]


ABOVE_IDEAL = 1.05  # an efficiency beyond that is not believed, if its interval is not known


class RecordSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A run or an experiment in short."""

    started: str
    kind: str
    workload: str = ""
    workers: str = ""
    state: str
    result: str = ""
    folder: str


def lines_of(entries: Sequence[IndexEntry]) -> tuple[list[RecordSummary], list[str]]:
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


def _without(entry: IndexEntry, state: str) -> RecordSummary:
    return RecordSummary(started=entry.started, kind=entry.kind, state=state, folder=entry.folder)


def _line(folder: Path, found: RunFolder | Experiment) -> RecordSummary:
    if isinstance(found, Experiment):
        return RecordSummary(
            started=found.started,
            kind=found.kind,
            workload=value_text("workload", found.options.get("workload")),
            workers=_span([row.get("workers") for row in _measured(found)]),
            state=state_of(found),
            result=_result_of_rows(found),
            folder=str(folder),
        )
    file = found.file
    return RecordSummary(
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
    text, word = value_text(name, value), column(name).title.removeprefix("best ").removeprefix("validation ")
    return f"{text} {word}" if word.endswith("/s") else f"{word} {text}"


def _progress(run: RunFolder) -> str:
    return f"after step {run.steps()[-1].get('step')}" if run.steps() else ""


def _result_of_rows(found: Experiment) -> str:
    trials = f"{len(found.trials)} trial{'' if len(found.trials) == 1 else 's'}"
    rows = _measured(found)
    name = next((name for row in rows if (name := best_of(row))), "")
    if not name:
        return trials
    known = [row for row in rows if row.get(name) is not None]
    if name == "efficiency":
        return _efficiency(max(known, key=lambda row: row.get("workers") or 0))
    return _named(name, max((row[name] for row in known), key=lambda value: worth(name, value)))


def _measured(found: Experiment) -> list[dict[str, Any]]:
    """The rows without those that were only predicted."""
    return [row for row in found.rows if row.get("state") not in ("predicted", "not run")]


def _efficiency(row: Mapping[str, Any]) -> str:
    """The efficiency of the largest job. More than ideal is no result: the jobs are not comparable.

    >>> _efficiency({"workers": 8, "efficiency": 0.83}), _efficiency({"workers": 2, "efficiency": 1.42})
    ('efficiency 83 % on 8', 'above ideal (142 %) on 2: not comparable')
    """
    text, low = value_text("efficiency", row["efficiency"]), row.get("efficiency_low")
    above = low > 1 if isinstance(low, int | float) else row["efficiency"] > ABOVE_IDEAL
    on = f"on {row['workers']}" if row.get("workers") else ""
    return f"above ideal ({text}) {on}: not comparable" if above else f"efficiency {text} {on}".rstrip()


def _span(numbers: Sequence[Any]) -> str:
    """
    >>> _span([1, 2, 4]), _span([2, 2]), _span([None])
    ('1-4', '2', '')
    """
    known = sorted({number for number in numbers if isinstance(number, int)})
    return "" if not known else str(known[0]) if len(known) == 1 else f"{known[0]}-{known[-1]}"
