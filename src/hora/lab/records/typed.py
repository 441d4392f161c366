"""The `hora train …` that a person would type to get a run: the options in its record, without defaults."""

from __future__ import annotations

from typing import Any

import msgspec

from hora.errors import UsageError
from hora.workloads import WORKLOADS, options_of
from hora.workloads.folder import RunFile

__all__ = ["typed_command"]

_ANYWAY = ("json", "overwrite", "resume")  # where to write and how to begin: not what makes a run what it is


def typed_command(file: RunFile) -> list[str]:
    """The command line, in words. Workers are started with a JSON text, which nobody types.

    >>> run = RunFile(workload="mnist", options={"batch": 50, "epochs": 3.0, "augment": 1}, plan={}, workers=2)
    >>> " ".join(typed_command(run))
    'hora train mnist -np 2 --epochs 3 --batch 50'
    """
    words = ["hora", "train", file.workload]
    if file.workers > 1:
        words += ["-np", str(file.workers)]
    if file.workload not in WORKLOADS:
        return words
    for name, value in _needed(file.workload, file.options).items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            words += [f"--{flag}", f"{value:g}" if isinstance(value, float) else str(value)]
    return words


def _needed(workload: str, options: dict[str, Any]) -> dict[str, Any]:
    """The fewest options that give all of these, by their order in the workload; some come with others (presets)."""
    kind = options_of(workload)
    names = [name for name in kind.__struct_fields__ if name in options and name not in _ANYWAY]
    given = {name: options[name] for name in names}

    def gives(chosen: dict[str, Any]) -> bool:
        try:
            made = msgspec.to_builtins(kind.of(chosen))
        except UsageError:
            return False
        return all(made.get(name) == value for name, value in given.items())

    needed = given
    for name in names:
        fewer = {other: value for other, value in needed.items() if other != name}
        if gives(fewer):
            needed = fewer
    return needed
