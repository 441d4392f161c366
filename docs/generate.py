"""Writes the parts of the documentation that are tables in the code: environment variables and collectives.

    python docs/generate.py            rewrite what stands between the markers
    python docs/generate.py --check    change nothing; exit 1 if that would have changed something

``<!-- generated:NAME -->`` … ``<!-- /generated -->`` in a page holds what the function of that name below returns.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from hora.config import env
from hora.ops.table import TABLE, Collective

DOCS = Path(__file__).resolve().parent
SLOT = re.compile(r"(<!-- generated:(?P<name>[a-z]+) -->\n).*?(<!-- /generated -->)", re.DOTALL)


def environment() -> str:
    """Every variable, from the table that the program itself reads them by."""
    return "\n" + env.reference() + "\n"


def collectives() -> str:
    """Every collective, from the table that the functions and their docstrings are made from."""
    return "\n" + "\n".join(_section(collective) for collective in TABLE)


def _section(collective: Collective) -> str:
    forms = [f"`{form.function(collective.name)}`" for form in collective.forms]
    lines = [f"### {collective.name}", "", _markdown(collective.summary), "", f"Forms: {', '.join(forms)}.", ""]
    if collective.meaning:
        lines += [_markdown(collective.meaning), ""]
    if collective.arguments:
        lines += ["| argument | meaning |", "| --- | --- |"]
        for argument in collective.arguments:
            only = ", ".join(f"`{form.function(collective.name)}`" for form in argument.only)
            meaning = _markdown(argument.doc) + (f" Only in {only}." if only else "")
            lines.append(f"| `{argument.name}` | {meaning} |")
        lines.append("")
    if collective.ops:
        names = [op.name.capitalize() for op in sorted(collective.ops)]
        lines += [f"Operations: {', '.join(names)}.", ""]
    if collective.gradient:
        lines += [f"*Gradient.* {_markdown(collective.gradient)}", ""]
    return "\n".join(lines)


def _markdown(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|")


PARTS: dict[str, Callable[[], str]] = {"environment": environment, "collectives": collectives}


def filled(page: str) -> str:
    """A page with every slot filled anew."""
    return SLOT.sub(lambda slot: slot[1] + PARTS[slot["name"]]() + slot[3], page)


def main() -> int:
    wanted = {path: filled(path.read_text()) for path in sorted(DOCS.glob("*.md"))}
    stale = [path for path, text in wanted.items() if path.read_text() != text]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"docs/{path.name} is not what the code says; run: python docs/generate.py")
        return 1 if stale else 0
    for path in stale:
        path.write_text(wanted[path])
        print(f"wrote docs/{path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
