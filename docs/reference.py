"""The parts of the site that are made from the code when it is built: the API, the command line, the errors; and the
documents of the repository's root.

A page holds ``<!-- made:NAME ARGUMENT -->`` where such a part belongs; ``conf.py`` fills it in. What is also read
without the site (environment variables, collectives, job scripts) is written into the pages by ``generate.py``.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

__all__ = ["FRONT_ENDS", "filled"]

ROOT = Path(__file__).resolve().parents[1]
SLOT = re.compile(r"<!-- made:(?P<name>[a-z]+)(?: (?P<argument>[\w.]+))? -->")

# Headings of an API page, and the names below each; what is in no list is below the last one but "What is built".
WORLD = [
    "init",
    "shutdown",
    "is_initialized",
    "rank",
    "size",
    "local_rank",
    "local_size",
    "cross_rank",
    "cross_size",
    "is_homogeneous",
    "ProcessSet",
    "add_process_set",
    "remove_process_set",
    "global_process_set",
    "rank_op",
    "size_op",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "preempted",
    "PREEMPTED_EXIT_CODE",
    "start_timeline",
    "stop_timeline",
]
FRONT_ENDS = ("hora.torch", "hora.tensorflow", "hora.keras", "hora.jax", "hora.mxnet")
HANDLES = ["poll", "synchronize", "shared_empty", "Average", "Sum", "Adasum", "Min", "Max", "Product"]


def filled(text: str) -> str:
    """A page with its slots filled."""
    parts = {"api": api, "cli": lambda _: cli(), "errors": lambda _: errors(), "page": page}
    return SLOT.sub(lambda slot: parts[slot["name"]](slot["argument"] or ""), text)


def api(module: str) -> str:
    """Everything that a module exports, under a heading for each kind of thing.

    What another front-end exports as the very same object is only linked to; errors have a page of their own.
    """
    ours = importlib.import_module(module)
    names = [name for name in ours.__all__ if not name.startswith("__")]
    shared = {name: owner for name in names if (owner := _owner(module, name)) != module}
    sections: dict[str, list[str]] = {}
    for name in sorted(names, key=lambda name: (WORLD.index(name) if name in WORLD else 0, name.lower())):
        if name not in shared and (heading := _heading(module, name)):
            sections.setdefault(heading, []).append(_directive(module, name))
    order = ("Start, ranks and sizes", "Collectives", "Training", "What is built")
    parts = [f"## {heading}\n\n{_rst(sections[heading])}" for heading in order if heading in sections]
    if len(sections) == 1:
        parts = [_rst(next(iter(sections.values())))]
    if linked := [f"{{py:obj}}`~{owner}.{name}`" for name, owner in shared.items() if _heading(module, name)]:
        parts.append(f"## Shared with other front-ends\n\n{', '.join(linked)}.\n")
    return "\n".join(parts)


def _owner(module: str, name: str) -> str:
    """The first front-end that has this object under this name, if it comes before the module."""
    value = getattr(importlib.import_module(module), name)
    before = FRONT_ENDS[: FRONT_ENDS.index(module)] if module in FRONT_ENDS else ()
    return next((other for other in before if getattr(sys.modules.get(other), name, None) is value), module)


def _heading(module: str, name: str) -> str | None:
    from hora.ops.table import FUNCTIONS

    value = getattr(importlib.import_module(module), name)
    if (inspect.isclass(value) and issubclass(value, BaseException)) or inspect.ismodule(value):
        return None
    if name in WORLD:
        return "Start, ranks and sizes"
    if name in FUNCTIONS or name in HANDLES:
        return "Collectives"
    return "What is built" if name.endswith(("_built", "_enabled", "_supported")) else "Training"


def _directive(module: str, name: str) -> str:
    value = getattr(importlib.import_module(module), name)
    if inspect.isclass(value):
        return f".. autoclass:: {module}.{name}\n   :members:\n"
    return f".. {'autofunction' if callable(value) else 'autodata'}:: {module}.{name}\n"


def errors() -> str:
    """Every exception, with what it says of itself."""
    from hora import errors as tree

    kinds = [name for name in tree.__all__ if inspect.isclass(getattr(tree, name))]
    return _rst([f".. autoexception:: hora.errors.{name}\n   :show-inheritance:\n   :members:\n" for name in kinds])


def page(name: str) -> str:
    """A document of the repository's root, with its links as they must be from docs/."""
    text = (ROOT / f"{name}.md").read_text().replace("](docs/", "](")
    return re.sub(r"\]\(([A-Z_]+)\.md", lambda link: f"]({link[1].lower().replace('_', '-')}.md", text)


def _rst(directives: list[str]) -> str:
    return "```{eval-rst}\n" + "\n".join(directives) + "```\n"


def cli() -> str:
    """Every command: how it is called, what it does, its arguments and options."""
    from hora.cli.main import _hora as hora

    return "\n".join(_command(command, path, context) for path, command, context in _commands(hora, ("hora",), None))


def _commands(
    command: click.Command, path: tuple[str, ...], parent: click.Context | None
) -> Iterator[tuple[tuple[str, ...], click.Command, click.Context]]:
    context = click.Context(command, info_name=path[-1], parent=parent)
    if parent is not None:
        yield path, command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            if (found := command.get_command(context, name)) and not found.hidden:
                yield from _commands(found, (*path, name), context)


def _command(command: click.Command, path: tuple[str, ...], context: click.Context) -> str:
    usage = " ".join([*path, *command.collect_usage_pieces(context)])
    lines = [f"{'#' * len(path)} {' '.join(path)}", "", f"```text\n{usage}\n```", "", _prose(command.help or ""), ""]
    rows = [row for option in command.params if isinstance(option, click.Option) for row in _option(option, context)]
    if rows:
        lines += ["| option | meaning |", "| --- | --- |", *rows, ""]
    return "\n".join(lines)


def _option(option: click.Option, context: click.Context) -> Iterator[str]:
    if option.hidden:
        return
    value = "" if option.is_flag or option.count else option.make_metavar(context)
    shown = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts]) + (f" `{value}`" if value else "")
    default = f" Default: {option.default}." if option.show_default and option.default is not None else ""
    meaning = " ".join(f"{option.help or ''}{default}".split())
    yield f"| {shown.replace('|', chr(92) + '|')} | {_escaped(meaning)} |"


def _escaped(text: str) -> str:
    """Text that Markdown shows as it is, in a cell of a table."""
    return re.sub(r"([\\|<>*_`\[\]{}$])", r"\\\1", text)


def _prose(text: str) -> str:
    """The help of a command: paragraphs, and what it marks to be kept as it stands."""
    parts = []
    for part in inspect.cleandoc(text.partition("\f")[0]).split("\n\n"):
        kept, body = part.startswith("\b"), part.removeprefix("\b").strip("\n")
        parts.append(f"```text\n{body}\n```" if kept else _escaped(" ".join(body.split())))
    return "\n\n".join(parts)
