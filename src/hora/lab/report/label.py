"""Short names for runs that are shown together: what differs between them, and nothing that is the same for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hora.lab.report.cells import heading, text_of

__all__ = ["labels"]

_ALONE = {"workload", "transport", "method", "name", "title", "framework", "network", "arch", "optimizer", "model"}
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
    differs = [name for name in names if len({text_of(name, each.get(name)) for each in facts}) > 1]
    shown = differs or [name for name in ("workload", "title", "name") if name in names][:1]
    made = []
    for each in facts:
        parts = []
        for name in shown:
            text = text_of(name, each.get(name))
            if text:
                parts.append(text if name in _ALONE else _counted(name, text))
        made.append(", ".join(parts) or "measured")
    return made


def _counted(name: str, text: str) -> str:
    if name == "mode":
        return f"{text} scaling"
    if name in _AFTER:
        return f"{text} {_AFTER[name]}{'' if text == '1' else 's'}"
    return f"{heading(name)} {text}"
