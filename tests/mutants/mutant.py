"""One planted bug: where, what, and a number that stays the same when lines above it come and go."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

__all__ = ["Mutant", "made"]


class Mutant(NamedTuple):
    """``text`` is the whole file with the bug in it."""

    id: str
    file: str
    function: str
    line: int
    what: str
    diff: str
    text: str


def made(file: str, function: str, source: str, begin: int, end: int, new: str, what: str) -> Mutant:
    """A mutant that puts ``new`` in place of ``source[begin:end]``."""
    line, first = source.count("\n", 0, begin) + 1, source.rfind("\n", 0, begin) + 1
    last = source.find("\n", end)
    last = len(source) if last < 0 else last
    before, after = source[first:last], source[first:begin] + new + source[end:last]
    change = [f"{sign}{text}" for sign, block in (("-", before), ("+", after)) for text in block.splitlines()]
    # Of equal changes in a function each has its place: which of the lines that are alike, and where in it.
    place = [str(source.count(before, 0, begin)), str(begin - first)]
    key = "\0".join([file, function, *(text[0] + text[1:].strip() for text in change), *place])
    return Mutant(
        id=hashlib.sha1(key.encode()).hexdigest()[:10],
        file=file,
        function=function,
        line=line,
        what=what,
        diff="\n".join([f"@@ {file}:{line} @@", *change]),
        text=source[:begin] + new + source[end:],
    )
