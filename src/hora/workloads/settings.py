"""Options of a workload as they are written in a line: ``NAME=VALUE``, as --set takes them. Imports no framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from hora.errors import UsageError, did_you_mean
from hora.workloads import options_of

__all__ = ["field_of", "refuse_unused", "settings", "why_not"]

_BOOLS = {"yes": "true", "on": "true", "no": "false", "off": "false"}


def settings(workload: str, sets: Sequence[str]) -> dict[str, Any]:
    """What --set gives, by field name, with the types that the workload's options have.

    >>> settings("mnist", ["lr=0.01", "save-every=0", "overwrite=yes"])
    {'lr': 0.01, 'save_every': 0.0, 'overwrite': True}
    >>> settings("mnist", ["speed=9"])
    Traceback (most recent call last):
    hora.errors.UsageError: --set speed=9: mnist has no option 'speed'. Did you mean 'seed'? ...
    """
    options_of(workload)  # also if nothing is set
    found: dict[str, Any] = {}
    for text in sets:
        word, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set {text}: there is no value in it. Write NAME=VALUE, such as --set lr=0.1.")
        name, hint = field_of(workload, word, f"--set {text}")
        if hint is bool or get_args(hint)[:1] == (bool,):
            value = _BOOLS.get(value.lower(), value)
        try:
            found[name] = msgspec.convert(value, hint, strict=False)
        except msgspec.ValidationError as error:
            why = why_not(error, value, hint)
            raise UsageError(f"--set {text}: {why}See 'hora train {workload} --help'.") from None
    return found


def why_not(error: msgspec.ValidationError, value: str, hint: Any) -> str:
    """What is wrong with a value; of one of a few, which they are."""
    choices = _choices(hint)
    if not choices:
        return f"{error}. "
    return f"it can be {', '.join(choices)}.{did_you_mean(value, choices)} "


def _choices(hint: Any) -> list[str]:
    """
    >>> _choices(Annotated[Literal["a", "b"], "note"]), _choices(int)
    (['a', 'b'], [])
    """
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return list(map(str, get_args(hint))) if get_origin(hint) is Literal else []


def field_of(workload: str, word: str, given: str) -> tuple[str, Any]:
    """The name and the type of the option that a word means; ``given`` is what to begin with if there is none.

    >>> field_of("mnist", "--batch", "--grid batch=8")[0]
    'batch'
    """
    name = word.strip().lstrip("-").replace("-", "_")
    hints = get_type_hints(options_of(workload), include_extras=True)
    if name not in options_of(workload).__struct_fields__:
        like = did_you_mean(name, options_of(workload).__struct_fields__)
        raise UsageError(f"{given}: {workload} has no option {word!r}.{like} See 'hora train {workload} --help'.")
    refuse_unused(workload, name, given)
    return name, hints[name]


def refuse_unused(workload: str, name: str, given: str) -> None:
    """Refuse an option that the workload ignores.

    >>> refuse_unused("synthetic", "epochs", "--epochs")
    Traceback (most recent call last):
    hora.errors.UsageError: --epochs: synthetic has no use for it. Leave it out; see 'hora train synthetic --help'.
    """
    if name in options_of(workload).unused:
        raise UsageError(f"{given}: {workload} has no use for it. Leave it out; see 'hora train {workload} --help'.")
