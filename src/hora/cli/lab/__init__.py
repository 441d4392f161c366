"""`hora lab`: experiments and their records. Each subcommand is in a file of its own, imported when it is used."""

from __future__ import annotations

import click

from hora.cli.lazy import LazyGroup

__all__ = ["lab"]

_COMMANDS = {
    "throughput": ("hora.cli.lab.throughput", "command", "Images/s over workers, batch sizes, threads and transports."),
    "scaling": ("hora.cli.lab.scaling", "command", "Speed-up and efficiency, what limits them, and what to change."),
    "quality": ("hora.cli.lab.quality", "command", "Does the model get worse with more workers? Which remedy helps?"),
    "elastic": ("hora.cli.lab.elastic", "command", "Kill workers by plan: recovery, goodput, equal bits."),
    "sweep": ("hora.cli.lab.sweep", "command", "Search batch size, learning rate and more, as a grid or guided."),
    "study": ("hora.cli.lab.study", "command", "The reference study's experiments in miniature, beside its tables."),
    "calibrate": ("hora.cli.lab.calibrate", "command", "Measure this machine for the predictions of 'hora plan'."),
    "report": ("hora.cli.lab.report", "command", "One page with tables and plots of any runs."),
    "list": ("hora.cli.lab.records", "list_command", "What was run, newest first."),
    "show": ("hora.cli.lab.records", "show_command", "One run or experiment: configuration, environment, results."),
    "compare": ("hora.cli.lab.records", "compare_command", "What differs between runs, and what came of it."),
}


@click.group("lab", cls=LazyGroup, table=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
def lab() -> None:
    """Measure what a workload does with more workers, and keep what was measured."""
