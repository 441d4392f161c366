"""Quoting for bash: words, with placeholders that become variables, and comments."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

__all__ = ["array", "comment", "word"]


def word(text: str, values: Mapping[str, str] | None = None) -> str:
    """``text`` as one word of bash; ``{name}`` becomes what ``values`` has for it, in bash.

    >>> word("a b"), word("{job}"), word("--out=run {job}.log", {"job": "$job"})
    ("'a b'", "'{job}'", '\\'--out=run \\'"$job".log')
    """
    if not values:
        return shlex.quote(text)
    parts = re.split("({(?:" + "|".join(map(re.escape, values)) + ")})", text)
    quoted = [f'"{values[part[1:-1]]}"' if i % 2 else shlex.quote(part) for i, part in enumerate(parts) if part]
    return "".join(quoted) or "''"


def array(words: Sequence[str], values: Mapping[str, str] | None = None) -> str:
    """An array of bash with these words.

    >>> array(["python", "train.py", "--note", "it's"])
    '(python train.py --note \\'it\\'"\\'"\\'s\\')'
    """
    return "(" + " ".join(word(text, values) for text in words) + ")"


def comment(text: str) -> str:
    """``text`` as a comment that cannot end early.

    >>> comment("hora submit 'two\\nlines'")
    "# hora submit 'two\\\\nlines'"
    """
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return f"# {shown}"
