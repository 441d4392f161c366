"""Sentences on a terminal: broken between words. In a log or a pipe a line stays a line."""

from __future__ import annotations

import re
import shutil
import textwrap
from typing import TextIO

__all__ = ["fitted", "wrapped"]

_UNIT = re.compile(r"(?<=\d) (?=(?:%|[mµ]?s|min|h|[KMG]?B|images/s|points)(?:\W|$))")
_TIED = "\u00a0"


def fitted(text: str, stream: TextIO) -> str:
    """The text as it goes to this stream.

    >>> import io
    >>> fitted("a line that is long enough to be broken, were this a terminal", io.StringIO())
    'a line that is long enough to be broken, were this a terminal'
    """
    if not stream.isatty():
        return text
    width = shutil.get_terminal_size().columns
    return "\n".join(wrapped(line, width) for line in text.split("\n"))


def wrapped(line: str, width: int, indent: int | None = None) -> str:
    """The text broken between words, but not between a number and its unit; further lines are indented like the first.

    >>> print(wrapped("  rank 0 has no more batches", 20))
      rank 0 has no more
      batches
    >>> print(wrapped("took 12 s, about 90 % of it", 18, 5))
    took 12 s, about
         90 % of it
    """
    far = len(line) - len(line.lstrip()) if indent is None else indent
    filled = textwrap.fill(
        _UNIT.sub(_TIED, line), width, subsequent_indent=" " * far, break_long_words=False, break_on_hyphens=False
    )
    return filled.replace(_TIED, " ")
