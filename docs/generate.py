"""Writes the parts of the documentation that are tables in the code: environment variables, collectives,
the options of ``hora submit`` and the scripts it prints.

    python docs/generate.py            rewrite what stands between the markers
    python docs/generate.py --check    change nothing; exit 1 if that would have changed something

``<!-- generated:NAME -->`` … ``<!-- /generated -->`` in a page holds what the function of that name below returns.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click

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


def submit() -> str:
    """Every option of ``hora submit``, from the command itself."""
    from hora.cli.submit import submit as command

    rows = ["| option | meaning |", "| --- | --- |"]
    for option in command.params:
        if isinstance(option, click.Option):
            value = "" if option.is_flag else f" {option.make_metavar(click.Context(command))}"
            names = ", ".join(f"`{name}`" for name in option.opts)
            default = f" Default: {option.default}." if option.show_default else ""
            meaning = f"{option.help}{default}".replace("|", "\\|")
            shown = f"{names}{f' `{value.strip()}`' if value else ''}".replace("|", "\\|")
            rows.append(f"| {shown} | {meaning} |")
    return "\n" + "\n".join(rows) + "\n\n"


JOB = """hora submit --scheduler slurm --nodes 2 --tasks-per-node 4 --time 2h --venv venv --dry-run \\
    python train.py --epochs 10"""
LONG_JOB = """hora submit --scheduler slurm --nodes 2 --tasks-per-node 4 --cpus-per-task 7 --gpus-per-node 4 --mem 0 \\
    --time 12h --partition gpu --exclusive --module cuda --venv venv --stage /scratch/imagenet.tar --requeue \\
    --dry-run python train.py --data '{stage}/imagenet'"""


def _printed(command: str) -> str:
    """A command of ours, and what it prints."""
    words = shlex.split(command.replace("\\\n", " "))
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, check=True)
    return f"\n```console\n$ {command}\n```\n\n```bash\n{done.stdout}```\n\n"


PARTS: dict[str, Callable[[], str]] = {
    "environment": environment,
    "collectives": collectives,
    "submit": submit,
    "job": lambda: _printed(JOB),
    "longjob": lambda: _printed(LONG_JOB),
}


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
