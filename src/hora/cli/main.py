"""The ``hora`` command. Subcommands live in files of their own and are imported when they are used.

Exit codes: 2 for wrong usage, 3 for an environment that is not up to it, a failed worker's own code otherwise. Both
kinds of refusal are one message without a traceback; a name that is not known is answered with those that are like it.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, cast

import click

from hora import __version__
from hora.cli.fit import fitted
from hora.cli.lazy import LazyGroup
from hora.errors import BadData, DamagedCheckpoint, EnvironmentUnfit, UsageError, WorkersFailed, did_you_mean

__all__ = ["main", "parse"]

_COMMANDS = {
    "run": ("hora.cli.run", "run", "Run a script on many workers, as horovodrun does."),
    "submit": ("hora.cli.submit", "submit", "Write a job script for a scheduler and submit it."),
    "train": ("hora.cli.train", "train", "Train MNIST, CIFAR-10, ImageNet, 3DGAN or a synthetic workload."),
    "lab": ("hora.cli.lab", "lab", "Measure scaling and model quality; list and compare runs."),
    "bench": ("hora.cli.bench", "bench", "Benchmark training and collectives against other libraries."),
    "data": ("hora.cli.data", "data", "Download, generate, convert and stage data sets."),
    "plan": ("hora.cli.plan", "plan", "Print a run's learning rates and predict how long it takes."),
    "timeline": ("hora.cli.timeline", "timeline", "Analyse a timeline: where the time went, and which rank is late."),
    "doctor": ("hora.cli.doctor", "doctor", "Check what works on this machine, and how to fix the rest."),
    "env": ("hora.cli.env", "env", "Show versions, machine and environment, for a bug report."),
    "completion": ("hora.cli.completion", "completion", "Print the completion script for bash, zsh or fish."),
}

_FIRST = (
    ("hora doctor", "check this machine"),
    ("hora data make digits", "generate data, or: hora data get mnist"),
    ("hora train mnist -np 2 --epochs 1", "train on two workers"),
)
_NOT_ONE_OF = re.compile("'([^']+)' is not one of (.*)", re.DOTALL)
_NO_SUCH = re.compile("No such command '([^']+)'")


class _Hora(LazyGroup):
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Getting started"):
            formatter.write_dl(_FIRST, col_max=40)
        with formatter.section("Learn more"):
            formatter.write_dl(
                [
                    ("hora COMMAND --help", "the options of a command"),
                    (_docs(), "installing, running, training, measuring, errors"),
                    ("hora completion bash", "set up completion, also for zsh and fish"),
                ]
            )


def _docs() -> str:
    """Where the docs are: beside the sources they were installed from, if those are here."""
    folder = Path(__file__).resolve().parents[3] / "docs"
    if not (folder / "running.md").exists():
        return "docs/"
    return os.path.relpath(folder) if folder.is_relative_to(Path.cwd()) else str(folder)


@click.group(
    cls=_Hora, table=_COMMANDS, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip
@click.version_option(__version__, "-v", "--version", prog_name="hora")
@click.pass_context
def _hora(ctx: click.Context) -> None:
    """Scale a training script from one process to many, and measure whether it was worth it."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def parse(words: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The subcommand and the values of its options, read as `hora WORDS` would, which is not run. Raises what it would.

    >>> parse(["train", "mnist", "--epochs", "2"])[1]["epochs"]
    2.0
    """
    context, command, rest = click.Context(_hora, info_name="hora"), cast(click.Command, _hora), list(words)
    while isinstance(command, click.Group):
        if not rest:
            raise UsageError(f"'{context.command_path}' is not a complete command: a subcommand is missing.")
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None
        command = found
        if isinstance(command, click.Group):
            context = click.Context(command, info_name=name, parent=context)
    return words[0], command.make_context(name, rest, parent=context).params


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point; always ends the process."""
    try:
        result = _hora.main(
            args=list(sys.argv[1:] if arguments is None else arguments), prog_name="hora", standalone_mode=False
        )
        code = result if isinstance(result, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help(), err=True)
        code = 2
    except click.ClickException as error:
        code = _refuse(_words(error, sys.argv[1:] if arguments is None else arguments), 2)
    except (UsageError, BadData, DamagedCheckpoint) as error:
        code = _refuse(str(error), 2)
    except EnvironmentUnfit as error:
        code = _refuse(str(error), 3)
    except WorkersFailed as error:
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = 130
    if arguments is None and sys.argv[1:2] == ["run"]:
        _leave(code)
    sys.exit(code)


def _words(error: click.ClickException, typed: Sequence[str]) -> str:
    """What click has to say, with a name that is like the one it does not know, and where to look further."""
    text, ctx = error.format_message(), error.ctx if isinstance(error, click.UsageError) else None
    text = re.sub(r"Choose from:\s+(.*)", lambda found: f"Choose from {' '.join(found[1].split())}.", text, flags=re.S)
    if ctx is None:
        return text
    if isinstance(ctx.command, click.Group) and (unknown := _NO_SUCH.match(text)):
        text = f"No such command '{unknown[1]}'.{did_you_mean(unknown[1], ctx.command.list_commands(ctx))}"
    elif isinstance(error, click.NoSuchOption):
        if ctx.parent is None and error.option_name.startswith(("-n", "--n")):
            text += " To start workers, use 'hora run -np 2 python train.py'."
        elif ctx.command.name == "submit" and error.option_name.startswith("-n"):
            text += " A job has --nodes, and on each of them --tasks-per-node workers."
        elif given := _as_set(error.option_name, ctx, typed):
            text = f"No such option '{error.option_name}'. Give it as {given}."
    elif isinstance(error, click.BadParameter) and (unknown := _NOT_ONE_OF.search(text)):
        text += did_you_mean(unknown[1], re.findall("'([^']+)'", unknown[2]))
    return f"{text}\nTry '{ctx.command_path} --help'."


def _as_set(option: str, ctx: click.Context, typed: Sequence[str]) -> str:
    """How an option of the workload is given to a command that takes it with --set; empty if it is none."""
    from hora.workloads import WORKLOADS, options_of

    workload = next((word for word in typed if word in WORKLOADS), "")
    name = option.lstrip("-").replace("-", "_")
    if not workload or not any(parameter.name == "sets" for parameter in ctx.command.params):
        return ""
    if name not in options_of(workload).__struct_fields__:
        return ""
    at = next((place for place, word in enumerate(typed) if word.partition("=")[0] == option), len(typed))
    value = typed[at].partition("=")[2] if at < len(typed) else ""
    if not value and at + 1 < len(typed) and not typed[at + 1].startswith("-"):
        value = typed[at + 1]
    return f"--set {name.replace('_', '-')}={value or 'VALUE'}"


def _leave(code: int) -> NoReturn:
    """End this process at once: to take an interpreter down in good order takes longer than an empty job."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _refuse(message: str, code: int) -> int:
    click.echo(fitted(f"hora: {message}", sys.stderr), err=True)
    return code


if __name__ == "__main__":
    main()
