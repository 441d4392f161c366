"""Lists of hosts as Slurm writes them: ``h[1-3,7],gpu[01-16]a``; and counts: ``2(x3),1``."""

from __future__ import annotations

import itertools
import re

from hora.errors import UsageError

__all__ = ["expand", "expand_counts", "split"]

_MOST_HOSTS = 1 << 16
_PART = re.compile(r"[^\[\],\s]+|\[[^\[\]]*\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)


def expand(text: str) -> tuple[str, ...]:
    """The hosts of a list, in its order; zeros in front are kept.

    >>> expand("h[1-3,7],login")
    ('h1', 'h2', 'h3', 'h7', 'login')
    >>> expand("rack[1-2]n[08-10]")
    ('rack1n08', 'rack1n09', 'rack1n10', 'rack2n08', 'rack2n09', 'rack2n10')
    """
    names: list[str] = []
    for word in split(text):
        choices = []
        position = 0
        for match in _PART.finditer(word):
            if match.start() != position:
                raise _unreadable(text)
            position = match.end()
            part = match.group()
            choices.append(_numbers(part[1:-1], text) if part.startswith("[") else [part])
        if position != len(word) or not choices:
            raise _unreadable(text)
        names += map("".join, itertools.islice(itertools.product(*choices), _MOST_HOSTS))
    return tuple(names)


def expand_counts(text: str) -> tuple[int, ...]:
    """A number for each host.

    >>> expand_counts("2(x3),1")
    (2, 2, 2, 1)
    """
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip(), re.ASCII)
        if match is None or int(match[2] or 1) > _MOST_HOSTS:
            raise UsageError(f"{text!r} is not a list of counts. It should look like 2(x3),1.")
        counts += [int(match[1])] * int(match[2] or 1)
    return tuple(counts)


def split(text: str) -> list[str]:
    """Split a list at the commas outside brackets.

    >>> split("h[1,3]:2,h2")
    ['h[1,3]:2', 'h2']
    """
    words, depth, start = [], 0, 0
    for index, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            words.append(text[start:index])
            start = index + 1
    return [word.strip() for word in (*words, text[start:])]


def _numbers(inside: str, text: str) -> list[str]:
    numbers: list[str] = []
    for part in inside.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise _unreadable(text)
        first, last = match[1], match[2] or match[1]
        if not int(first) <= int(last) < int(first) + _MOST_HOSTS:
            raise _unreadable(text)
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return numbers


def _unreadable(text: str) -> UsageError:
    return UsageError(f"{text!r} is not a list of hosts. It should look like h[1-3,7],gpu[01-16].")
