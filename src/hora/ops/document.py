"""Docstrings from the table: written once in ``ops.table``, shown on every front-end's every form."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hora.ops.table import FUNCTIONS, Argument, Collective, Form

__all__ = ["documented", "render"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

_WIDTH = 116


def documented(function: _Function) -> _Function:
    """Fill a function's docstring from the table, found by the function's name; its own text, if any, is put last.

    >>> @documented
    ... def barrier(process_set=None): ...
    >>> barrier.__doc__.splitlines()[0]
    'Wait until every rank has called this.'
    """
    collective, form = FUNCTIONS[function.__name__]
    function.__doc__ = render(collective, form, function.__doc__ or "")
    return function


def render(collective: Collective, form: Form, more: str = "", arguments: Sequence[Argument] | None = None) -> str:
    """The docstring of one form; of a front-end whose arguments differ from the table's, with those."""
    parts = [collective.summary, collective.meaning, collective.example, _about_form(form)]
    parts += [_arguments(collective.parameters(form) if arguments is None else arguments), _returns(collective, form)]
    if collective.gradient and not form.asynchronous:
        parts.append(f"Gradient: {collective.gradient}")
    parts.append(textwrap.dedent(more).strip())
    return "\n\n".join(_fill(part) for part in parts if part)


def _fill(part: str) -> str:
    return part if "\n" in part else _wrap(part)


def _wrap(text: str, indent: str = "", hanging: str = "") -> str:
    """Lines of at most ``_WIDTH``. What textwrap does, at a tenth of its price: this runs on every import.

    >>> print(_wrap("word " * 30, "- ", "  "))
    - word word word word word word word word word word word word word word word word word word word word word word
      word word word word word word word word
    """
    lines, line = [], indent
    for word in text.split():
        if len(line) + len(word) > _WIDTH and line.strip():
            lines.append(line.rstrip())
            line = hanging
        line += word + " "
    return "\n".join([*lines, line.rstrip()])


def _about_form(form: Form) -> str:
    says = []
    if form.grouped:
        says.append("The tensors are one unit: none is worked on until all ranks have submitted the whole group.")
    if form.in_place:
        says.append("The result overwrites the input.")
    if form.asynchronous:
        says.append(
            "Returns at once; the tensors must not be changed until the operation has finished. Gradients do not flow"
            " through asynchronous forms."
        )
    return " ".join(says)


def _arguments(arguments: Sequence[Argument]) -> str:
    lines = ["Args:"]
    for argument in arguments:
        text = f"{argument.name}: {argument.doc}"
        lines.append(_wrap(text, "    ", "        "))
    return "\n".join(lines)


def _returns(collective: Collective, form: Form) -> str:
    if not collective.returns:
        return ""
    what = f"a list with, for each input, {collective.returns}" if form.grouped else collective.returns
    if form.asynchronous:
        waiter = "a function to call" if collective.name == "sparse_allreduce" else "a handle for ``synchronize``"
        what = f"{waiter}, which gives {what}"
    return f"Returns: {what}."
