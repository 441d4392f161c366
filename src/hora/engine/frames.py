"""An exception as a user wants to read it: the lines of the script, and not those of Hora that it went through.

TensorFlow and JAX make errors of their own of what goes wrong in a compiled program, with the whole traceback in the
text; of that the words of Hora's error are left. Hora's own frames stay where an exception is not one of Hora's and
comes from inside it: that is a bug of ours, or a call that nobody has foreseen. ``HORA_FULL_TRACEBACK=1`` shows all.
"""

from __future__ import annotations

import os
import re
import traceback

import hora
from hora import errors
from hora.errors import HoraError

__all__ = ["ENDS", "final", "told"]

ENDS = " "  # ends the first line of what a process says because it ends; the launcher looks for it, nobody sees it

# One of Hora's errors in the text of another's, which has lines of a traceback before it.
_KINDS = "|".join(name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, HoraError))
_INNER = re.compile(rf"^(?:hora\.errors\.)?((?:{_KINDS}): .*?)(?:\n\n|\n-{{9,}}|\Z)", re.MULTILINE | re.DOTALL)
_OWN = os.path.dirname(os.path.abspath(hora.__file__)) + os.sep


def final(text: str) -> str:
    """Mark what this process says as the last.

    >>> final("hora: no.\\nReally.")
    'hora: no. \\nReally.'
    """
    first, end, rest = text.partition("\n")
    return f"{first}{ENDS}{end}{rest}"


def told(error: BaseException, *, full: bool = False) -> str:
    """The traceback, as Python would print it.

    >>> from hora.engine.explain import lost
    >>> try:
    ...     lost(None, "", "")
    ... except AttributeError as error:
    ...     print("explain.py" in told(error))    # not one of Hora's errors: it shows where it happened
    True
    """
    found = traceback.TracebackException.from_exception(error)
    if not full:
        _shorten(found, error, set())
    return "".join(found.format())


def _is_library(frame: traceback.FrameSummary) -> bool:
    return "site-packages" in frame.filename


def _shorten(found: traceback.TracebackException, error: BaseException, seen: set[int]) -> None:
    if id(error) in seen:
        return
    seen.add(id(error))
    words = getattr(found, "_str", None)  # what Python prints after the kind of the error
    if not isinstance(error, HoraError) and isinstance(words, str) and (inner := _INNER.findall(words)):
        found._str = inner[-1]  # type: ignore[attr-defined]
    others = [frame for frame in found.stack if not os.path.abspath(frame.filename).startswith(_OWN)]
    inside = bool(found.stack) and others[-1:] != found.stack[-1:]
    if isinstance(error, HoraError) and not all(map(_is_library, others)):
        while _is_library(others[-1]):  # what of a framework called Hora, such as autograd
            others.pop()
    if others and (isinstance(error, HoraError) or not inside):
        found.stack = traceback.StackSummary.from_list(others)
    if found.__cause__ is not None and error.__cause__ is not None:
        _shorten(found.__cause__, error.__cause__, seen)
    if found.__context__ is not None and error.__context__ is not None:
        _shorten(found.__context__, error.__context__, seen)
