"""What a sweep may choose from: values of options, or ranges of them, checked against the workload before a run.

``batch=32,64 lr=0.1,0.2`` is a grid. Values that have commas in them are parted by ``|``: ``decay=30,60|cosine``. In a
range, ``lr=0.01..1 log`` goes from low to high, ``log`` evenly in orders of magnitude; values work there as well.
``workers`` may be swept like an option.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import msgspec

from hora.errors import UsageError
from hora.lab.records.words import PLACES
from hora.workloads import options_of
from hora.workloads.settings import field_of, why_not

__all__ = [
    "Choice",
    "Dimension",
    "Range",
    "check_point",
    "corners",
    "grid_points",
    "parse_grid",
    "parse_ranges",
    "value_text",
]

WORKERS = "workers"
Point = dict[str, Any]


class Choice(msgspec.Struct, frozen=True, tag=True):
    """Some values of an option."""

    name: str
    values: tuple[Any, ...]


class Range(msgspec.Struct, frozen=True, tag=True):
    """All between two values of an option."""

    name: str
    low: float
    high: float
    log: bool = False
    whole: bool = False  # only whole numbers


Dimension = Choice | Range


def parse_grid(workload: str, text: str) -> tuple[Choice, ...]:
    """
    >>> parse_grid("mnist", "batch=32,64 lr=0.1")
    (Choice(name='batch', values=(32, 64)), Choice(name='lr', values=(0.1,)))
    >>> parse_grid("mnist", "decay=30,60|cosine")[0].values
    ('30,60', 'cosine')
    >>> parse_grid("mnist", "lr=fast")
    Traceback (most recent call last):
    hora.errors.UsageError: --grid lr=fast: 'fast' is no number. See 'hora train mnist --help'.
    """
    found = [_choice(workload, word, "--grid") for word in text.split()]
    return tuple(_once(found, f"--grid {text!r}", "batch=32,64 lr=0.1,0.2"))


def parse_ranges(workload: str, texts: Sequence[str]) -> tuple[Dimension, ...]:
    """
    >>> parse_ranges("mnist", ["lr=0.001..1 log batch=16..64", "optimizer=sgd,adam"])
    (Range(name='lr', low=0.001, high=1.0, log=True, whole=False), Range(name='batch', low=16, high=64, log=False,
     whole=True), Choice(name='optimizer', values=('sgd', 'adam')))
    >>> parse_ranges("mnist", ["lr=1..0.1"])
    Traceback (most recent call last):
    hora.errors.UsageError: --range lr=1..0.1: the low end is not below the high end. Write lr=LOW..HIGH.
    """
    found: list[Dimension] = []
    for word in " ".join(texts).split():
        if word == "log":
            if not found or not isinstance(found[-1], Range):
                raise UsageError("--range: 'log' stands after no range. Write for example lr=0.01..1 log.")
            if found[-1].low <= 0:
                raise UsageError(f"--range {found[-1].name}: a range that is log cannot begin at {found[-1].low:g}.")
            found[-1] = msgspec.structs.replace(found[-1], log=True)
        elif ".." in word:
            found.append(_range(workload, word))
        else:
            found.append(_choice(workload, word, "--range"))
    return tuple(_once(found, f"--range {' '.join(texts)!r}", "lr=0.01..1 log"))


def _once(found: list[Any], flag: str, example: str) -> list[Any]:
    if not found:
        raise UsageError(f'{flag}: there is nothing in it to search. Write for example "{example}".')
    names = [dimension.name for dimension in found]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{flag}: {name} is there twice. Give all its values at once.")
    return found


def _parts(workload: str, word: str, flag: str) -> tuple[str, str]:
    """An option's name and the rest; refuses what the workload does not have."""
    options_of(workload)  # before anything is said of the word
    left, equals, rest = word.partition("=")
    name = WORKERS
    if not equals or not rest:
        raise UsageError(f"{flag} {word}: there is no value in it. Write for example lr=0.1,0.2, without spaces.")
    if left.lstrip("-") != WORKERS:
        name, _ = field_of(workload, left, f"{flag} {word}")
    if name in PLACES:
        raise UsageError(f"{flag} {word}: each trial gets a {name} of its own. Leave it out.")
    return name, rest


def _value(workload: str, name: str, text: str, flag: str) -> Any:
    hint: Any = int if name == WORKERS else field_of(workload, name, flag)[1]
    try:
        value = msgspec.convert(text, hint, strict=False)
    except msgspec.ValidationError as error:
        numeric = "got `str`" in str(error) and ("float" in str(error) or "int" in str(error))
        why = f"{text!r} is no number. " if numeric else why_not(error, text, hint)
        raise UsageError(f"{flag} {name}={text}: {why}See 'hora train {workload} --help'.") from None
    if (isinstance(value, float) and not math.isfinite(value)) or (name == WORKERS and value < 1):
        raise UsageError(f"{flag} {name}={text}: that is no number to train with. Give another.")
    return value


def _choice(workload: str, word: str, flag: str) -> Choice:
    name, rest = _parts(workload, word, flag)
    texts = rest.split("|") if "|" in rest else rest.split(",")
    values = [_value(workload, name, text, flag) for text in texts if text]
    if not values:
        raise UsageError(f"{flag} {word}: there is no value in it. Write for example {name}=1,2.")
    return Choice(name, tuple(dict.fromkeys(values)))


def _range(workload: str, word: str) -> Range:
    name, rest = _parts(workload, word, "--range")
    low, high = (_value(workload, name, text, "--range") for text in rest.split("..", 1))
    if isinstance(low, bool) or not isinstance(low, int | float) or not isinstance(high, int | float):
        raise UsageError(f"--range {word}: {name} is no number, so there is nothing between. Write {name}=A,B.")
    if not low < high:
        raise UsageError(f"--range {word}: the low end is not below the high end. Write {name}=LOW..HIGH.")
    return Range(name, low, high, whole=isinstance(low, int) and isinstance(high, int))


def grid_points(grid: Sequence[Choice]) -> list[Point]:
    """All combinations, the last option changing fastest.

    >>> grid_points([Choice("batch", (32, 64)), Choice("lr", (0.1,))])
    [{'batch': 32, 'lr': 0.1}, {'batch': 64, 'lr': 0.1}]
    """
    names = [choice.name for choice in grid]
    return [dict(zip(names, values, strict=True)) for values in product(*(choice.values for choice in grid))]


def corners(space: Sequence[Dimension]) -> list[Point]:
    """Points at the ends of every range, and at all values of every choice, to see that they can be trained.

    >>> corners((Range("lr", 0.1, 1.0), Choice("optimizer", ("sgd", "adam"))))
    [{'lr': 0.1, 'optimizer': 'sgd'}, {'lr': 1.0, 'optimizer': 'adam'}]
    """
    ends: dict[str, tuple[Any, ...]] = {
        one.name: (one.low, one.high) if isinstance(one, Range) else one.values for one in space
    }
    turns = max(len(values) for values in ends.values())
    return [{name: values[min(turn, len(values) - 1)] for name, values in ends.items()} for turn in range(turns)]


def check_point(workload: str, fixed: Mapping[str, Any], point: Mapping[str, Any]) -> None:
    """Refuse what `hora train` would."""
    options = {**fixed, **{name: value for name, value in point.items() if name != WORKERS}}
    try:
        options_of(workload).of(options)
    except UsageError as error:
        told = " ".join(f"{name}={value_text(value)}" for name, value in point.items())
        raise UsageError(f"the point {told} cannot be trained: {error}") from None


def value_text(value: Any) -> str:
    """The value in its shortest form.

    >>> value_text(0.1234567891), value_text(64), value_text("sgd")
    ('0.123457', '64', 'sgd')
    """
    return f"{value:g}" if isinstance(value, float) else str(value)
