"""`hora lab`: experiments and their records. Each subcommand is in a file of its own, imported when it is used."""

from __future__ import annotations

import importlib

import click

__all__ = ["lab"]

# name: (module, its click command, what the list of commands says)
_COMMANDS = {
    "throughput": ("throughput", "command", "Images/s over workers, batch sizes, threads and transports."),
    "scaling": ("scaling", "command", "Speed-up and efficiency, what limits them, and what to change."),
    "quality": ("quality", "command", "Does the model get worse with more workers? Which remedy helps?"),
    "sweep": ("sweep", "command", "Search batch size, learning rate and more, as a grid or guided."),
    "study": ("study", "command", "The reference study's experiments in miniature, beside its tables."),
    "calibrate": ("calibrate", "command", "Measure this machine for the predictions of 'hora plan'."),
    "report": ("report", "command", "One page with tables and plots of any runs."),
    "list": ("records", "list_command", "What was run, newest first."),
    "show": ("records", "show_command", "One run or experiment: configuration, environment, results."),
    "compare": ("records", "compare_command", "What differs between runs, and what came of it."),
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, attribute, _ = _COMMANDS[cmd_name]
        command = getattr(importlib.import_module(f"hora.cli.lab.{module}"), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """From the table, so that ``hora lab --help`` imports no subcommand."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, help) for name, (_, _, help) in _COMMANDS.items()])


@click.group("lab", cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
def lab() -> None:
    """Measure what a workload does with more workers, and keep what was measured."""
