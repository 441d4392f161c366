"""The differences between records, and their results, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hora.errors import UsageError
from hora.lab.columns import column, is_number
from hora.lab.records.files import Experiment, RunFolder, state_of
from hora.lab.records.words import PLACES, best_of

__all__ = ["Comparison", "ComparisonRow", "compare"]

_RUN_RESULTS = (
    "images_per_s", "images_per_s_study", "first_batch_s", "data_s", "cpu_share", "memory_bytes", "seconds",
    "steps", "epochs",
)  # fmt: skip
# What says which row of a table is which; all else is measured.
_KEYS = (
    "mode", "experiment", "what", "framework", "gpus", "factor", "trial", "workload", "workers", "emulated", "batch",
    "threads", "transport",
)  # fmt: skip


class ComparisonRow(msgspec.Struct, frozen=True, kw_only=True):
    """A fact of every record; None where it has none."""

    name: str  # how values are to be read
    label: str
    values: list[Any]

    @property
    def ratios(self) -> list[float | None]:
        """Each of the values to the first, where both are numbers.

        >>> ComparisonRow(name="x", label="x", values=[2.0, 5, None]).ratios
        [1.0, 2.5, None]
        """
        first = self.values[0]
        return [value / first if is_number(value) and is_number(first) and first else None for value in self.values]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """``kind`` is "run" or that of the experiments."""

    kind: str
    folders: list[str]
    differences: list[ComparisonRow]
    results: list[ComparisonRow]


def compare(records: Sequence[tuple[Path, RunFolder | Experiment]]) -> Comparison:
    """Compare two records or more, all of them runs or all of them experiments of one kind.

    >>> def made_up(batch, images_per_s):
    ...     rows = [{"workers": 2, "images_per_s": images_per_s}]
    ...     return Experiment(kind="scaling", title="", options={"batch": batch}, rows=rows)
    >>> made = compare([(Path("a"), made_up(32, 100.0)), (Path("b"), made_up(64, 150.0))])
    >>> made.differences[0].label, made.differences[0].values, made.results[0].ratios
    ('batch', [32, 64], [1.0, 1.5])
    """
    kinds = {folder: record.kind if isinstance(record, Experiment) else "run" for folder, record in records}
    if len(set(kinds.values())) > 1:
        told = ", ".join(f"{folder} ({kind})" for folder, kind in kinds.items())
        raise UsageError(f"these are of different kinds: {told}. Compare runs with runs, scaling with scaling.")
    facts = [_facts(record) for _, record in records]
    names = list(dict.fromkeys(name for each in facts for name in each))
    rows = [
        ComparisonRow(name=name.split(".")[-1], label=_label(name), values=[each.get(name) for each in facts])
        for name in names
    ]
    return Comparison(
        kind=next(iter(kinds.values())),
        folders=[str(folder) for folder, _ in records],
        differences=[row for row in rows if any(value != row.values[0] for value in row.values)],
        results=_results([record for _, record in records]),
    )


def _facts(record: RunFolder | Experiment) -> dict[str, Any]:
    """What may differ and matter: options first, then the machine."""
    facts: dict[str, Any] = {}
    if isinstance(record, RunFolder):
        file: Any = record.file
        facts |= {"workload": file.workload, "workers": file.workers, "hosts": file.hosts}
        facts |= {"emulated_workers": file.emulated_workers or None, "threads_per_worker": file.threads_per_worker}
        outcome = record.outcome()
        if outcome is not None:
            facts |= {"transport": outcome.trial.transport, "independent": outcome.trial.independent}
    else:
        file = record
    facts |= {f"options.{name}": value for name, value in file.options.items() if name not in (*PLACES, "data")}
    for group in ("versions", "host", "git"):
        facts |= {f"{group}.{name}": value for name, value in getattr(file, group).items()}
    return facts


def _label(name: str) -> str:
    """
    >>> _label("options.save_every"), _label("versions.torch"), _label("git.commit")
    ('save every', 'torch', 'git commit')
    """
    group, _, rest = name.rpartition(".")
    return f"git {rest}" if group == "git" else rest.replace("_", " ")


def _results(records: Sequence[RunFolder | Experiment]) -> list[ComparisonRow]:
    states = ComparisonRow(name="state", label="state", values=[_state(record) for record in records])
    alike = len({*states.values}) == 1
    if all(isinstance(record, Experiment) for record in records):
        rows = _of_tables([record for record in records if isinstance(record, Experiment)])
    else:
        rows = _of_runs([record for record in records if isinstance(record, RunFolder)])
    return rows if alike else [states, *rows]


def _state(record: RunFolder | Experiment) -> str:
    if isinstance(record, Experiment):
        return state_of(record)
    outcome = record.outcome()
    return outcome.state if outcome is not None else state_of(record.file)


def _of_runs(runs: Sequence[RunFolder]) -> list[ComparisonRow]:
    results = []
    for run in runs:
        outcome = run.outcome()
        measured = {name: getattr(outcome, name, None) for name in _RUN_RESULTS if outcome is not None}
        found = {**run.file.result, **(outcome.result if outcome else {}), **_known(measured)}
        results.append(_known(found))
    names = [name for result in results for name in result if name.startswith(("val_", "best_"))]
    chosen = dict.fromkeys([*names, *_RUN_RESULTS])
    rows = [
        ComparisonRow(name=name, label=column(name).title, values=[result.get(name) for result in results])
        for name in chosen
    ]
    return [row for row in rows if any(value is not None for value in row.values)]


def _of_tables(found: Sequence[Experiment]) -> list[ComparisonRow]:
    """For every row that one of the tables has, the measure that matters most."""
    tables = [{_key(row): row for row in experiment.rows} for experiment in found]
    keys = dict.fromkeys(key for table in tables for key in table)
    telling = [name for name in _KEYS if len({dict(key).get(name) for key in keys}) > 1]
    rows = []
    for key in keys:
        merit = next((name for table in tables if key in table and (name := best_of(table[key]))), "")
        words = ", ".join(f"{column(name).title} {value}" for name, value in key if name in telling)
        label = f"{words}: {column(merit).title}" if words else column(merit).title
        if merit:
            rows.append(
                ComparisonRow(name=merit, label=label, values=[table.get(key, {}).get(merit) for table in tables])
            )
    return rows


def _key(row: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple((name, row[name]) for name in _KEYS if row.get(name) is not None)


def _known(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value is not None and value == value and value != 0}
