"""Short names for runs that are shown together: what differs between them, and nothing that is the same for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hora.lab.columns import column, value_text
from hora.lab.records import Experiment
from hora.workloads.folder import RunFile

__all__ = ["about", "facts_of", "labels"]

_ALONE = {
    "label",
    "host",
    "date",
    "time",
    "workload",
    "transport",
    "strategy",
    "method",
    "name",
    "title",
    "framework",
    "network",
    "arch",
    "optimizer",
    "model",
}
_AFTER = {"workers": "worker", "epochs": "epoch", "threads": "thread"}  # 2 workers, not workers 2


def labels(facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each, made of the facts that are not the same for all; the first of those that have none is "all".

    >>> labels([{"batch": 32, "transport": "shm"}, {"batch": 64, "transport": "shm"}])
    ['batch 32', 'batch 64']
    >>> labels([{"transport": "shm", "threads": 1}, {"transport": "gloo", "threads": 1}])
    ['shm', 'gloo']
    >>> labels([{"workload": "mnist", "batch": 32}])
    ['mnist']
    """
    names = list(dict.fromkeys(name for each in facts for name in each))
    differs = [name for name in names if len({value_text(name, each.get(name)) for each in facts}) > 1]
    shown = differs or [name for name in ("workload", "title", "name") if name in names][:1]
    made = []
    for each in facts:
        parts = []
        for name in shown:
            text = value_text(name, each.get(name))
            if text:
                parts.append(text if name in _ALONE else _counted(name, text))
        made.append(", ".join(parts) or "measured")
    return made


def facts_of(file: Experiment | RunFile) -> dict[str, str]:
    """What distinguishes a record from others: its label, workload, framework, hosts and date.

    >>> facts_of(Experiment(kind="scaling", title="mnist: scaling", label="before", options={"workload": "mnist"},
    ...                     host={"hostname": "node7"}, started="2026-11-16T07:10:15+00:00"))
    {'label': 'before', 'workload': 'mnist', 'framework': 'torch', 'host': 'node7', 'date': '2026-11-16 07:10'}
    """
    options: Mapping[str, Any] = file.options
    if isinstance(file, RunFile):
        label, workload, hosts = "", file.workload, file.hosts
        where = f"{hosts} hosts" if hosts > 1 else str(file.host.get("hostname", ""))
    else:
        label = file.label
        workload = str(options.get("workload") or ("mnist" if file.kind == "study" else file.title.partition(":")[0]))
        where = str(options.get("hosts") or file.host.get("hostname", ""))
        options = {**options, **(options.get("set") or {})}
    found = {
        "label": label,
        "workload": workload,
        "framework": str(options.get("framework") or "torch"),
        "host": where,
        "date": f"{file.started[:10]} {file.started[11:16]}".strip(),
    }
    return {name: value for name, value in found.items() if value}


def about(file: Experiment | RunFile) -> str:
    """The same as a line."""
    return " · ".join(facts_of(file).values())


def _counted(name: str, text: str) -> str:
    if name == "mode":
        return f"{text} scaling"
    if name in _AFTER:
        return f"{text} {_AFTER[name]}{'' if text == '1' else 's'}"
    return f"{column(name).title} {text}"
