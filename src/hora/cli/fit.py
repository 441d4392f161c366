"""Sentences on a terminal: broken between words. In a log or a pipe a line stays a line."""

from __future__ import annotations

import shutil
import textwrap
from typing import TextIO

__all__ = ["fitted"]


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


def wrapped(line: str, width: int) -> str:
    """
    >>> print(wrapped("  rank 0 has no more batches", 20))
      rank 0 has no more
      batches
    """
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.fill(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
    )  # fmt: skip
